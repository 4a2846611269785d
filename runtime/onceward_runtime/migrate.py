"""Brings a database's schema `onceward` up to date, from the numbered files in `migrations`.

Each file is one transaction that also records it, under an advisory lock: several processes may run this at once, and a
crash leaves whole migrations only. The steps are written once, for a psycopg connection and for Alembic's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Protocol

import psycopg
from psycopg.rows import TupleRow

from onceward_runtime import postgres
from onceward_runtime.settings import Settings
from onceward_schemas.errors import DatabaseError

_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")
_LOCK_KEY = 6_042_013_771
"""An arbitrary number that means: migrating the schema `onceward`."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered file."""

    number: int
    name: str
    sql: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.number:04d} {self.name}"


@dataclass(frozen=True, slots=True)
class Applied:
    """One row of onceward.migrations."""

    number: int
    name: str
    sha256: str


class Session(Protocol):
    """What the steps need of a connection that has a transaction open."""

    def value(self, statement: str) -> object: ...
    def applied(self) -> list[Applied]: ...
    def script(self, sql: str) -> None: ...
    def record(self, migration: Migration) -> None: ...


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the migrations that this version of Onceward brings, in order."""
    found = []
    for file in files("onceward_runtime").joinpath("migrations").iterdir():
        if match := _FILE.match(file.name):
            text = file.read_bytes()
            found.append(Migration(int(match[1]), match[2], text.decode(), hashlib.sha256(text).hexdigest()))
    return tuple(sorted(found, key=lambda migration: migration.number))


def plan(database: Settings | str) -> list[Migration]:
    """Return the migrations that `apply` would run; changes nothing.

    Raises: DatabaseError when the database cannot be reached, or does not fit this version's files.
    """
    with _connected(database) as connection, connection.transaction():
        return pending(migrations(), _applied(PsycopgSession(connection)))


def apply(database: Settings | str) -> list[Migration]:
    """Run what is pending and return what this call ran; on return the schema is up to date and durable.

    Raises: DatabaseError as `plan` does. Migrations before the failing one stay applied.
    """
    done: list[Migration] = []
    with _connected(database) as connection:
        session = PsycopgSession(connection)
        while True:
            with connection.transaction():
                if (migration := step(session, migrations())) is None:
                    return done
            done.append(migration)


def check(database: Settings | str) -> None:
    """See that the database is as this version needs it.

    Raises: DatabaseError naming the pending migrations.
    """
    if missing := plan(database):
        names = ", ".join(str(migration) for migration in missing)
        raise DatabaseError(
            f"The database lacks {len(missing)} migrations: {names}.", remedy="Run `onceward db apply`."
        )


def step(session: Session, known: Sequence[Migration]) -> Migration | None:
    """Run the next pending migration in the session's open transaction; None when there is none.

    Whoever comes second waits for the lock, and then finds the first one's row.
    """
    session.value(f"select pg_advisory_xact_lock({_LOCK_KEY})")
    _prepare(session)
    waiting = pending(known, session.applied())
    if not waiting:
        return None
    session.script(waiting[0].sql)
    session.record(waiting[0])
    return waiting[0]


def pending(known: Sequence[Migration], applied: Sequence[Applied]) -> list[Migration]:
    """Return the known migrations that are not applied.

    Raises: DatabaseError when an applied file has changed since, or the database is newer than the files.
    """
    by_number = {migration.number: migration for migration in known}
    for row in applied:
        migration = by_number.get(row.number)
        if migration is None:
            latest = max(by_number, default=0)
            raise DatabaseError(
                f"The database has migration {row.number:04d} {row.name}; this version of Onceward knows them up to "
                f"{latest:04d}.",
                remedy="Upgrade Onceward in this process.",
            )
        if migration.sha256 != row.sha256:
            raise DatabaseError(
                f"Migration {migration} was applied with another content than this version's file has.",
                remedy="Install the version that applied it, or, where the data is worth nothing, run "
                "`drop schema onceward cascade` and `onceward db apply`.",
            )
    present = {row.number for row in applied}
    return [migration for migration in known if migration.number not in present]


_TABLE = """
create table onceward.migrations (
    number int primary key,
    name text not null,
    sha256 text not null,
    applied_at timestamptz not null default now()
)
"""


def _prepare(session: Session) -> None:
    # Looked up first, since "if not exists" asks for the right to create even where there is nothing to do.
    if session.value("select to_regnamespace('onceward') is null"):
        session.script("create schema onceward")
    if session.value("select to_regclass('onceward.migrations') is null"):
        session.script(_TABLE)


def _applied(session: Session) -> list[Applied]:
    return [] if session.value("select to_regclass('onceward.migrations') is null") else session.applied()


@contextmanager
def _connected(database: Settings | str) -> Iterator[psycopg.Connection[TupleRow]]:
    with (
        postgres.translated(),
        postgres.connect(database, application_name="onceward db", autocommit=True) as connection,
    ):
        yield connection


class PsycopgSession:
    """The steps' view of a psycopg connection."""

    def __init__(self, connection: psycopg.Connection[TupleRow]) -> None:
        self._connection = connection

    def value(self, statement: str) -> object:
        row = self._connection.execute(statement).fetchone()
        return row[0] if row else None

    def applied(self) -> list[Applied]:
        rows = self._connection.execute("select number, name, sha256 from onceward.migrations order by number")
        return [Applied(*row) for row in rows]

    def script(self, sql: str) -> None:
        self._connection.execute(sql)

    def record(self, migration: Migration) -> None:
        self._connection.execute(
            "insert into onceward.migrations (number, name, sha256) values (%s, %s, %s)",
            (migration.number, migration.name, migration.sha256),
        )
