"""Runs Onceward's migrations inside a revision of the user's own Alembic history.

In a revision: `def upgrade(): onceward_runtime.alembic.upgrade(op)`. It joins Alembic's transaction. SQLAlchemy drivers
for psycopg, psycopg2 and, through `run_sync`, the asynchronous ones will do.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, text

from onceward_runtime import migrate
from onceward_schemas.errors import DatabaseError


def upgrade(op: Any, *, through: int | None = None) -> list[migrate.Migration]:
    """Run what is pending on Alembic's connection and return it; durable when Alembic commits.

    `op` is `alembic.op`. `through` stops after that number, so that a revision means the same after an upgrade of Onceward.
    Raises: DatabaseError as `migrate.apply` does, and in offline mode.
    """
    if op.get_context().as_sql:
        raise DatabaseError(
            "Onceward's migrations look at the database and cannot be written to a script.",
            remedy="Run Alembic online, or leave the revision out and run `onceward db apply`.",
        )
    known = [m for m in migrate.migrations() if through is None or m.number <= through]
    session = SqlalchemySession(op.get_bind(), through)
    done = []
    while (migration := migrate.step(session, known)) is not None:
        done.append(migration)
    return done


class SqlalchemySession:
    """The steps' view of an SQLAlchemy connection."""

    def __init__(self, connection: Connection, through: int | None) -> None:
        self._connection = connection
        self._through = through

    def value(self, statement: str) -> object:
        return self._connection.scalar(text(statement))

    def applied(self) -> list[migrate.Applied]:
        rows = self._connection.execute(text("select number, name, sha256 from onceward.migrations order by number"))
        found = [migrate.Applied(*row) for row in rows]
        return [row for row in found if self._through is None or row.number <= self._through]

    def script(self, sql: str) -> None:
        raw: Any = self._connection.connection.dbapi_connection
        if hasattr(
            raw, "run_async"
        ):  # an asynchronous driver, which prepares what goes the usual way: one statement only
            raw.run_async(lambda connection: connection.execute(sql))
        else:
            self._connection.exec_driver_sql(sql, execution_options={"no_parameters": True})

    def record(self, migration: migrate.Migration) -> None:
        self._connection.execute(
            text("insert into onceward.migrations (number, name, sha256) values (:number, :name, :sha256)"),
            {"number": migration.number, "name": migration.name, "sha256": migration.sha256},
        )
