"""The three servers together: started in parallel, kept on their ports and data, ended with the process that owns them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from onceward_devstack.downloads import Downloads, Progress
from onceward_devstack.kafka import Kafka, warm_groups
from onceward_devstack.places import command
from onceward_devstack.ports import choose_ports
from onceward_devstack.postgres import Postgres, remove_outside_data
from onceward_devstack.registry import Registry
from onceward_devstack.requirements import DATA_MIB, check_disk, check_packages, check_platform, writing
from onceward_devstack.server import Server
from onceward_devstack.state import is_held, is_stack, lock_folder
from onceward_schemas.errors import DevstackError

_SHARED = Path("/var/tmp")
_TEMPORARY = "onceward-stack-"
_ABANDONED_SECONDS = 600
SERVICES = ("kafka", "postgres", "registry")
_PORTS = ("kafka", "kafka_controller", "postgres", "registry", "registry_management")

Ready = Callable[[Server], None]


class Stack:
    """Kafka, PostgreSQL and the registry in one folder.

    `kafka`, `postgres` and `registry` may each be stopped, killed, frozen and started again on their own. All end when
    this process ends, also by kill -9 (on Linux).
    """

    def __init__(
        self,
        home: Path,
        *,
        ports: Mapping[str, int] | None = None,
        postgres_settings: Mapping[str, str] | None = None,
        downloads: Downloads | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Download what is missing, lock the folder and choose the ports; nothing is started yet.

        Raises: DevstackError when another process runs a stack in the folder, or the machine lacks something.
        """
        check_platform()
        check_packages()
        check_disk(home, DATA_MIB)
        program = (downloads or Downloads()).fetch(progress)
        self.home = home.absolute()
        with writing(self.home):
            self.home.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] | None = lock_folder(self.home)
        try:
            with writing(self.home):
                chosen = choose_ports(self.home, _PORTS, dict(ports or {}))
        except BaseException:
            self._lock.close()
            raise
        self.kafka = Kafka(
            self.home / "kafka", program, port=chosen["kafka"], controller_port=chosen["kafka_controller"]
        )
        self.postgres = Postgres(self.home / "postgres", port=chosen["postgres"], settings=postgres_settings)
        self.registry = Registry(
            self.home / "registry",
            program,
            port=chosen["registry"],
            management_port=chosen["registry_management"],
            jdbc_url=self.postgres.jdbc_url,
        )

    @property
    def servers(self) -> tuple[Server, ...]:
        return (self.kafka, self.postgres, self.registry)

    def start(self, on_ready: Ready | None = None, timeout_seconds: float = 90) -> Self:
        """Start all and wait until they answer. On an error none is left running."""
        tell = on_ready or (lambda server: None)
        try:
            with writing(self.home):
                self._start(tell, timeout_seconds)
        except BaseException:
            self.close()
            raise
        return self

    def _start(self, tell: Ready, timeout_seconds: float) -> None:
        self.kafka.launch()
        self.postgres.launch()
        self.postgres.wait_ready(timeout_seconds)
        self.postgres.create_databases("onceward", "registry")
        self.registry.launch()
        tell(self.postgres)
        self.kafka.wait_ready(timeout_seconds)
        warm_groups(self.kafka.bootstrap)
        tell(self.kafka)
        self.registry.wait_ready(timeout_seconds)
        tell(self.registry)

    def stop(self) -> None:
        """Stop all in order; start() may follow."""
        for server in (self.registry, self.kafka, self.postgres):
            server.stop()

    def close(self) -> None:
        """Stop all and give up the folder."""
        self.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def environment(self) -> dict[str, str]:
        """The settings with which Onceward uses this stack."""
        return environment(self.kafka.address, self.postgres.address, self.registry.address)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def environment(kafka: str, postgres: str, registry: str) -> dict[str, str]:
    """ONCEWARD_* variables for three addresses."""
    return {
        "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS": kafka,
        "ONCEWARD_DATABASE_URL": postgres,
        "ONCEWARD_REGISTRY_URL": registry,
    }


def remove_data(home: Path) -> None:
    """Delete the folder of a stack that does not run, and what lies elsewhere for it.

    Raises: DevstackError when it runs, or when the folder is not a stack's.
    """
    if not home.exists():
        return
    if is_held(home):
        raise DevstackError(f"The stack in {home} runs.", remedy=f"End it first: {command('down', home)}")
    if not is_stack(home):
        raise DevstackError(f"{home} is not the folder of a stack; nothing was deleted.", remedy="Check --home.")
    remove_outside_data(home / "postgres")
    shutil.rmtree(home)


@contextmanager
def temporary_stack(
    postgres_settings: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    prepare: Callable[[Stack], None] = lambda stack: None,
) -> Iterator[Stack]:
    """A started stack whose data are deleted at the end. It lies in /var/tmp, where every user may reach it.

    `prepare` is called with it before anything is started.
    """
    _remove_abandoned()
    home = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=_SHARED))
    home.chmod(0o755)
    try:
        stack = Stack(home, postgres_settings=postgres_settings, progress=progress)
        try:
            prepare(stack)
            yield stack.start()
        finally:
            stack.close()
    finally:
        remove_outside_data(home / "postgres")
        shutil.rmtree(home)


def _remove_abandoned() -> None:
    """Delete temporary stacks whose process was killed; young ones may be about to start."""
    for home in _SHARED.glob(f"{_TEMPORARY}*"):
        try:
            status = home.stat()
        except FileNotFoundError:
            continue
        old = time.time() - status.st_mtime > _ABANDONED_SECONDS
        if old and status.st_uid == os.geteuid() and is_stack(home) and not is_held(home):
            shutil.rmtree(home, ignore_errors=True)
