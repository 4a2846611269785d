"""Connections to PostgreSQL: named, with keepalives and time-outs, and with errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import TupleRow

from onceward_runtime.settings import Settings, remedy_if_unset
from onceward_schemas.errors import DatabaseError


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Time-outs that PostgreSQL itself enforces on one session, whatever becomes of the client. None sets none."""

    lock_timeout: timedelta | None = None
    """How long a statement may wait for a lock."""
    statement_timeout: timedelta | None = None
    transaction_timeout: timedelta | None = None
    """Needs PostgreSQL 17."""
    idle_in_transaction_session_timeout: timedelta | None = None
    """Ends the session of a frozen client, and so frees its row locks."""
    client_connection_check_interval: timedelta | None = None
    """How often a running statement looks whether its client is still there."""

    def options(self) -> str:
        """Return the limits as libpq's `options`.

        >>> SessionLimits(lock_timeout=timedelta(seconds=2)).options()
        '-c lock_timeout=2000ms'
        """
        given = ((field.name, getattr(self, field.name)) for field in fields(self))
        return " ".join(f"-c {name}={_milliseconds(value)}ms" for name, value in given if value is not None)


_NO_LIMITS = SessionLimits()


def connect(
    database: Settings | str,
    *,
    application_name: str,
    autocommit: bool = False,
    limits: SessionLimits = _NO_LIMITS,
    connect_timeout: timedelta = timedelta(seconds=10),
) -> psycopg.Connection[TupleRow]:
    """Open a connection. `database` is the settings or a libpq URL or keyword string.

    Raises: DatabaseError, with a remedy by cause.
    """
    parameters = parameters_of(database, application_name, limits, connect_timeout)
    with translated():
        return psycopg.connect(autocommit=autocommit, **parameters)


def parameters_of(
    database: Settings | str, application_name: str, limits: SessionLimits, connect_timeout: timedelta
) -> dict[str, Any]:
    """Return libpq's parameters. What the address itself says on time-outs and keepalives wins.

    An address as SQLAlchemy writes it (`postgresql+psycopg://`) is taken too.
    """
    dsn = database.dsn if isinstance(database, Settings) else database
    try:
        given = conninfo_to_dict(re.sub(r"^(postgres(?:ql)?)\+\w+://", r"\1://", dsn))
    except psycopg.ProgrammingError:
        raise DatabaseError(
            "The database's address cannot be read.",  # not quoted: it may hold a password
            remedy="Write ONCEWARD_DATABASE_URL as postgresql://user:password@host:port/database.",
        ) from None
    defaults: dict[str, Any] = {
        "connect_timeout": max(2, round(connect_timeout.total_seconds())),
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        "client_encoding": "utf8",
    }
    options = f"{limits.options()} {given.get('options') or ''}".strip()
    return defaults | given | {"application_name": application_name} | ({"options": options} if options else {})


@contextmanager
def translated() -> Iterator[None]:
    """Turn psycopg's errors about the server or the schema into DatabaseError; others pass unchanged."""
    try:
        yield
    except psycopg.Error as error:
        if (known := database_error(error)) is None:
            raise
        raise known from error


_MIGRATE = "Run `onceward db apply`."
_BY_STATE = {
    "3F000": ("The database has no schema `onceward`.", _MIGRATE),
    "42P01": (None, _MIGRATE),
    "42703": (None, "See whether `onceward db check` finds migrations that are missing."),
    "42883": (None, _MIGRATE),
    "42501": (None, "Grant the role that right; `onceward db plan --sql` shows the tables."),
    "28P01": (None, "Correct the password in ONCEWARD_DATABASE_URL."),
    "28000": (None, "Correct the role in ONCEWARD_DATABASE_URL, or create it."),
    "3D000": (None, "Correct the database in ONCEWARD_DATABASE_URL, or create it."),
    "53300": (None, "Close connections, raise max_connections, or put a pooler in front."),
    "57P03": (None, "Wait until the server accepts connections."),
    "25006": (None, "Point ONCEWARD_DATABASE_URL at the primary server."),
}
_OF_SCHEMA = ("3F000", "42P01", "42883")
# libpq gives no SQLSTATE for what goes wrong while connecting.
_BY_TEXT = (
    ("password authentication failed", _BY_STATE["28P01"][1]),
    ("no password supplied", _BY_STATE["28P01"][1]),
    ("no pg_hba.conf entry", "Let pg_hba.conf admit this role from this address."),
    ("too many connections", _BY_STATE["53300"][1]),
    ("too many clients", _BY_STATE["53300"][1]),
    ("remaining connection slots", _BY_STATE["53300"][1]),
    ("unrecognized configuration parameter", "Use PostgreSQL 17 or later."),
    ("the database system is", _BY_STATE["57P03"][1]),
    ("connection refused", "Start the server, or correct host and port in ONCEWARD_DATABASE_URL."),
    ("failed to resolve host", "Correct the host in ONCEWARD_DATABASE_URL."),
    (
        "timeout expired",
        "See whether host and port in ONCEWARD_DATABASE_URL are right and a firewall lets you through.",
    ),
    ("ssl", "Make sslmode in ONCEWARD_DATABASE_URL agree with the server."),
)
_ROLE_MISSING = re.compile(r'role ".*" does not exist')
_DATABASE_MISSING = re.compile(r'database ".*" does not exist')


def database_error(error: psycopg.Error) -> DatabaseError | None:
    """Return what a psycopg error says about the server or the schema, or None for errors of a statement's own."""
    said = _last_line(error)
    if error.sqlstate in _OF_SCHEMA and "onceward" not in said:
        return None  # the caller's own table or function
    if error.sqlstate in _BY_STATE:
        message, remedy = _BY_STATE[error.sqlstate]
        return DatabaseError(message or f"PostgreSQL says: {said}.", remedy=remedy)
    if not isinstance(error, psycopg.OperationalError) or _is_passing(error.sqlstate):
        return None
    return DatabaseError(f"PostgreSQL cannot be used: {said}.", remedy=_remedy(str(error)))


def _remedy(text: str) -> str:
    if _ROLE_MISSING.search(text):
        return str(_BY_STATE["28000"][1])
    if _DATABASE_MISSING.search(text):
        return str(_BY_STATE["3D000"][1])
    lowered = text.lower()
    if "connection refused" in lowered and (unset := remedy_if_unset("database_url", text)):
        return unset
    found = (remedy for mark, remedy in _BY_TEXT if mark in lowered)
    return next((remedy for remedy in found if remedy), "See whether the server runs, and its log.")


def _is_passing(sqlstate: str | None) -> bool:
    """Whether the statement may simply be tried again: deadlock, serialization, lock or statement time-out."""
    return sqlstate is not None and (sqlstate.startswith("40") or sqlstate in ("55P03", "57014"))


def _last_line(error: psycopg.Error) -> str:
    """The server's own words, without libpq's hints on the lines that follow."""
    first = error.diag.message_primary or (str(error).strip().splitlines() or [type(error).__name__])[0]
    return first.removeprefix("connection failed: ").rstrip(".")


def _milliseconds(value: timedelta) -> int:
    return max(1, round(value.total_seconds() * 1000))
