"""The door for SQLAlchemy 2 and any PostgreSQL driver under it; the async forms come through it too, by `run_sync`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, InvalidRequestError, UnboundExecutionError
from sqlalchemy.orm import Session, scoped_session

from onceward_producer.doors import CLOSED, by_sqlstate, numbered, refuse_inherited, run
from onceward_producer.work import Execute, Insert, Rows, Step, T, Warm, Work
from onceward_schemas.errors import DatabaseError, TransactionError

if TYPE_CHECKING:  # it needs greenlet, which SQLAlchemy 2.1 does not install by itself
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession


class SqlalchemyDoor:
    """Session and Connection. A session is flushed first, as before a query: the caller's own rows are locked by then,
    so that commands of one aggregate are inserted in the order of its changes."""

    def __init__(self, transaction: Session | Connection, *, in_greenlet: bool = False) -> None:
        self._transaction = transaction
        self._in_greenlet = in_greenlet
        self._connection: Connection | None = None

    def check(self) -> None:
        if isinstance(self._transaction, Session):
            self._connection = _connection_of(self._transaction)
        else:
            self._connection = self._transaction
        _check(self._connection)

    def do(self, step: Step) -> Rows:
        assert self._connection is not None
        if isinstance(step, Warm):
            if self._in_greenlet:
                from sqlalchemy.util import await_only

                await_only(asyncio.to_thread(step.load))
            else:
                step.load()
            return []
        statement = step.as_execute() if isinstance(step, Insert) else step
        sql, parameters = _for_driver(self._connection, statement)
        result = self._connection.exec_driver_sql(sql, parameters)
        return [tuple(row) for row in result] if statement.fetch else []

    def translated(self, error: Exception) -> Exception:
        if isinstance(error, DBAPIError):
            original: Any = error.orig
            sqlstate = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
            said = str(original).strip().splitlines() or [type(original).__name__]
            return by_sqlstate(sqlstate, said[0]) or error
        return error


def carried_out(transaction: object, work: Work[T]) -> T | Coroutine[Any, Any, T]:
    """Carry out the work on any of SQLAlchemy's transactions; a coroutine for its async ones."""
    if isinstance(transaction, scoped_session):
        transaction = transaction()
    if isinstance(transaction, Session | Connection):
        return run(SqlalchemyDoor(transaction), work)
    if "sqlalchemy.ext.asyncio" in sys.modules:  # where the async transactions' classes come from
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

        if isinstance(transaction, async_scoped_session):
            transaction = transaction()
        if isinstance(transaction, AsyncSession):
            return _in_session(transaction, work)
        if isinstance(transaction, AsyncConnection):
            return _on_connection(transaction, work)
    raise TransactionError(
        f"A {type(transaction).__name__} is not a transaction to publish in.",
        remedy="Pass a SQLAlchemy Session or Connection, a psycopg Connection, or one of their async forms.",
    )


async def _in_session(transaction: AsyncSession, work: Work[T]) -> T:
    return await transaction.run_sync(lambda session: run(SqlalchemyDoor(session, in_greenlet=True), work))


async def _on_connection(transaction: AsyncConnection, work: Work[T]) -> T:
    if transaction.closed:  # which run_sync would say in a way of its own
        raise TransactionError(CLOSED, remedy="Publish before the connection is closed, or on another one.")
    return await transaction.run_sync(lambda connection: run(SqlalchemyDoor(connection, in_greenlet=True), work))


def _connection_of(session: Session) -> Connection:
    """Leaving a session without commit rolls back, so a transaction that publish itself began might be lost unseen."""
    if not session.in_transaction():
        raise TransactionError(
            "No transaction is open in the session.",
            remedy="Publish inside `with session.begin():`, or after the first statement or change of your own.",
        )
    if session.autoflush:
        session.flush()
    try:
        return session.connection()
    except UnboundExecutionError as error:
        raise TransactionError(
            "The session has no single database.", remedy="Pass session.connection(...) of the one with the outbox."
        ) from error
    except InvalidRequestError as error:
        raise TransactionError(
            "The session's transaction cannot be used any more.", remedy="Roll it back, then publish in a new one."
        ) from error


def _check(connection: Connection) -> None:
    if connection.closed or connection.invalidated:
        raise TransactionError(CLOSED, remedy="Publish before the connection is closed, or on another one.")
    if connection.dialect.name != "postgresql":
        raise DatabaseError(
            f"The transaction belongs to a {connection.dialect.name} database.",
            remedy="Publish in a transaction of the PostgreSQL database that holds the outbox.",
        )
    if not connection.in_transaction():
        raise TransactionError(
            "No transaction is open on the connection.",
            remedy="Publish inside `with connection.begin():`, or after the first statement of your own.",
        )
    pooled: Any = connection.connection
    if getattr(pooled.dbapi_connection, "autocommit", False):
        raise TransactionError(
            "The connection is in AUTOCOMMIT isolation: each statement commits alone.",
            remedy="Publish on a connection with another isolation level.",
        )
    refuse_inherited(pooled.driver_connection)


def _for_driver(connection: Connection, statement: Execute) -> tuple[str, tuple[Any, ...]]:
    dialect = connection.dialect
    sql = numbered(statement.sql) if dialect.paramstyle == "numeric_dollar" else statement.sql
    if dialect.driver in ("psycopg", "psycopg_async", "asyncpg"):
        return sql, tuple(statement.parameters)
    return sql, tuple(_plain(value) for value in statement.parameters)


def _plain(value: Any) -> Any:
    """UUIDs as text, for drivers that do not know them; the server casts."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, UUID) else value
