"""The doors for psycopg 3."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus

from onceward_producer.doors import CLOSED, FAILED, ROLL_BACK, by_sqlstate, numbered, refuse_inherited
from onceward_producer.rows import OutboxRow
from onceward_producer.work import Execute, Rows, Step, Warm
from onceward_schemas.errors import TransactionError

_COPY: Final = f"copy onceward.outbox ({', '.join(OutboxRow._fields)}) from stdin (format binary)"
_TYPES: Final = ["uuid", "text", "text", "text", "bytea", "text", "int4", "int4", "text", "uuid", "text", "text"]


class PsycopgDoor:
    """psycopg.Connection."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def check(self) -> None:
        check_connection(self._connection)

    def do(self, step: Step) -> Rows:
        cursor = psycopg.RawCursor(self._connection)
        if isinstance(step, Execute):
            cursor.execute(numbered(step.sql), step.parameters)
            return cursor.fetchall() if step.fetch else []
        if isinstance(step, Warm):
            step.load()
        elif _in_pipeline(self._connection):  # which cannot carry COPY
            return self.do(step.as_execute())
        else:
            with cursor.copy(_COPY) as copy:
                copy.set_types(_TYPES)
                for row in step.rows:
                    copy.write_row(row)
        return []

    def translated(self, error: Exception) -> Exception:
        return translated(error)


class AsyncPsycopgDoor:
    """psycopg.AsyncConnection."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    def check(self) -> None:
        check_connection(self._connection)

    async def do(self, step: Step) -> Rows:
        cursor = psycopg.AsyncRawCursor(self._connection)
        if isinstance(step, Execute):
            await cursor.execute(numbered(step.sql), step.parameters)
            return await cursor.fetchall() if step.fetch else []
        if isinstance(step, Warm):
            await asyncio.to_thread(step.load)
        elif _in_pipeline(self._connection):
            return await self.do(step.as_execute())
        else:
            async with cursor.copy(_COPY) as copy:
                copy.set_types(_TYPES)
                for row in step.rows:
                    await copy.write_row(row)
        return []

    def translated(self, error: Exception) -> Exception:
        return translated(error)


def check_connection(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Refuse a connection on which a row would not become part of a transaction that the caller ends.

    Without autocommit psycopg begins one by itself, as for any statement of the caller's.
    """
    if connection.closed:
        raise TransactionError(CLOSED, remedy="Publish before the connection is closed, or on another one.")
    refuse_inherited(connection)
    status = connection.pgconn.transaction_status
    if status == TransactionStatus.INTRANS:
        return
    if status == TransactionStatus.INERROR:
        raise TransactionError(FAILED, remedy=ROLL_BACK)
    pipeline = _in_pipeline(connection)
    if status == TransactionStatus.ACTIVE and not pipeline:
        raise TransactionError(
            "The connection is busy with another statement.",
            remedy="Finish its COPY or stream first, or use another one.",
        )
    # While a pipeline is under way the server has not said yet whether its transaction is open; the blocks are counted.
    if connection.autocommit and not (pipeline and connection._num_transactions):
        raise TransactionError(
            "No transaction is open: the connection is in autocommit mode.",
            remedy="Publish inside `with connection.transaction():`, together with the data that the command is about.",
        )


def _in_pipeline(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


def translated(error: Exception) -> Exception:
    """Errors about the schema, rights or the transaction in Onceward's words; others as they are."""
    if not isinstance(error, psycopg.Error):
        return error
    return by_sqlstate(error.sqlstate, error.diag.message_primary or str(error)) or error
