"""The connection that a handler gets: psycopg's, without the means to end the engine's transaction.

In a pipelined group a statement's result arrives later. Asking for it waits for it here (sync), or ends the group's
pipelined run so that it runs again without (async, where an attribute cannot wait).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator
from functools import lru_cache, partial
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg import sql
from psycopg.rows import tuple_row

from onceward_consumer.express import Adapters, Express, LightCursor, learn
from onceward_schemas.errors import TransactionError

Row = TypeVar("Row")

# This module uses private parts of psycopg (names that begin with _): they are those of 3.3, to which pyproject.toml pins
# it, and tests/unit/consumer/test_psycopg_has_what_the_engine_reaches_into.py says what another version lacks.

_AT_ONCE = 16
"""Statements that are sent to the server together."""

_ENDS = re.compile(
    r"(?:\A|;)(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:commit|abort|prepare\s+transaction|rollback(?!(?:\s+work|\s+transaction)?\s+to\b))\b"
    r"|\A(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:begin|start\s+transaction|end)\b",
    re.IGNORECASE | re.DOTALL,
)


class NeedsResultError(BaseException):
    """A handler asked for the result of a pipelined statement where it cannot be waited for."""


def misuse(what: str) -> TransactionError:
    """The error for a handler that would end the transaction that its effect shares with the ledger."""
    return TransactionError(
        f"The handler called {what} on ctx.connection.",
        remedy="Leave it out: the effect and the ledger commit together when the handler returns. "
        "For a part that may fail, use `with ctx.connection.transaction():`, a savepoint.",
    )


@lru_cache(maxsize=4096)
def _ends_transaction(query: str) -> bool:
    return _ENDS.search(query) is not None


def check_query(query: Any) -> None:
    """Refuse a statement that begins or ends a transaction.

    Raises: TransactionError.
    """
    if isinstance(query, str):
        if _ends_transaction(query):
            raise misuse(query.split(None, 1)[0].upper() if query.split() else query)
    elif isinstance(query, bytes):
        check_query(query.decode("utf-8", "replace"))
    elif isinstance(query, sql.SQL):
        check_query(query._obj)
    elif isinstance(query, sql.Composed):
        for part in query:
            if isinstance(part, sql.SQL):
                check_query(part)


def _queued(
    cursor: Any, query: Any, params: Any, prepare: bool | None, binary: bool | None
) -> Generator[Any, Any, None]:
    """`BaseCursor._execute_gen` of psycopg 3.3 for a pipeline, but for talking to the server once in several statements.

    That talk is a system call or two for each statement, and costs more than all the rest.
    """
    connection = cursor._conn
    pipeline = connection._pipeline
    yield from cursor._start_query(query)
    converted = cursor._convert_query(query, params)
    yield from cursor._maybe_prepare_gen(converted, prepare=prepare, binary=binary)
    if len(pipeline.command_queue) >= _AT_ONCE:
        yield from pipeline._communicate_gen()
    cursor._last_query = query
    yield from connection._prepared.maintain_gen(connection)


def _remember(query: Any, params: Any) -> None:
    """Let `Express` take the statement from now on. One that ends the transaction is checked each time instead."""
    if type(query) is str and not _ends_transaction(query):
        learn(query, params)


def queue_command(connection: Any, command: bytes) -> None:
    """Queue a statement in the connection's pipeline that has neither parameters nor a result."""
    pipeline = connection._pipeline
    pipeline.command_queue.append(partial(connection.pgconn.send_query_params, command, None))
    pipeline.result_queue.append(None)


class _Guarded(LightCursor):
    """What both kinds of cursor share: by whatever method a statement is sent, here it is looked at first."""

    __slots__ = ()

    def _start_query(self, query: Any = None) -> Generator[Any, Any, None]:
        cursor: Any = self
        if cursor._conn.guarded and query is not None:
            check_query(query)
        yield from super()._start_query(query)  # type: ignore[misc]

    def _start_copy_gen(self, statement: Any, params: Any = None) -> Generator[Any, Any, None]:
        cursor: Any = self
        if cursor._conn.guarded:
            check_query(statement)
        yield from super()._start_copy_gen(statement, params)  # type: ignore[misc]

    def _execute_gen(
        self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> Generator[Any, Any, None]:
        cursor: Any = self
        if cursor._conn._pipeline is None:
            return super()._execute_gen(query, params, prepare=prepare, binary=binary)  # type: ignore[misc,no-any-return]
        return _queued(self, query, params, prepare, binary)


class HandlerCursor(_Guarded, psycopg.Cursor[Row]):  # type: ignore[override]
    """A cursor that waits for a pipelined result when its outcome is looked at."""

    __slots__ = ()

    def _fetch_pipeline(self) -> None:
        if self.pgresult is None and self._execmany_returning is not False and self._conn._pipeline is not None:
            with self._conn.lock:
                self._conn.express.fetch()  # type: ignore[attr-defined]

    def execute(
        self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> HandlerCursor[Row]:
        connection: Any = self._conn
        if connection._pipeline is not None and prepare is None and binary is None and self.is_light:
            with connection.lock:
                if connection.express.send(self, query, params):
                    return self
        return self.execute_slowly(query, params, prepare=prepare, binary=binary)

    def execute_slowly(self, query: Any, params: Any, **options: Any) -> HandlerCursor[Row]:
        """Execute it psycopg's way."""
        super().execute(query, params, **options)
        if self._conn._pipeline is not None:
            _remember(query, params)
        return self

    @property
    def rowcount(self) -> int:
        self._fetch_pipeline()
        return self._rowcount

    @property
    def statusmessage(self) -> str | None:
        self._fetch_pipeline()
        return super().statusmessage

    @property
    def description(self) -> Any:
        self._fetch_pipeline()
        return super().description


class HandlerConnection(psycopg.Connection[Any]):
    """The synchronous form. While a handler runs it is guarded: then only the engine ends the transaction, or closes it."""

    guarded = False
    touched = False
    """Whether anything was asked of it while it was guarded: a handler that raises before that has nothing to be undone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cursor_factory = HandlerCursor
        self._adapters = Adapters(psycopg.adapters)
        self.express = Express(self)

    def execute(self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool = False) -> Any:
        if self._pipeline is None or prepare is not None or binary or self.cursor_factory is not HandlerCursor:
            return super().execute(query, params, prepare=prepare, binary=binary)
        cursor: HandlerCursor[Any] = HandlerCursor(self)
        with self.lock:
            if self.express.send(cursor, query, params):
                return cursor
        return cursor.execute_slowly(query, params)

    def wait(self, *arguments: Any, **options: Any) -> Any:
        if self.guarded:
            self.touched = True
        return super().wait(*arguments, **options)

    def commit(self) -> None:
        if self.guarded:
            raise misuse("commit()")
        super().commit()

    def rollback(self) -> None:
        if self.guarded:
            raise misuse("rollback()")
        super().rollback()

    def set_autocommit(self, value: bool) -> None:
        if self.guarded:
            raise misuse("set_autocommit()")
        super().set_autocommit(value)

    def close(self) -> None:
        if self.guarded:
            raise misuse("close()")
        super().close()

    def __exit__(self, *exception: object) -> None:
        if self.guarded:
            raise misuse("`with ctx.connection:`")
        super().__exit__(*exception)  # type: ignore[arg-type]

    def tpc_begin(self, *arguments: Any) -> NoReturn:
        raise misuse("tpc_begin()")


class AsyncHandlerCursor(_Guarded, psycopg.AsyncCursor[Row]):  # type: ignore[override]
    """The asynchronous form."""

    __slots__ = ()

    async def _fetch_pipeline(self) -> None:
        pipeline = self._conn._pipeline
        if pipeline is not None and self.pgresult is None and pipeline.command_queue:
            async with self._conn.lock:
                await self._conn.wait(pipeline._communicate_gen())
        await super()._fetch_pipeline()

    async def execute(
        self, query: Any, params: Any = None, *, prepare: bool | None = None, binary: bool | None = None
    ) -> AsyncHandlerCursor[Row]:
        connection: Any = self._conn
        if connection._pipeline is not None and prepare is None and binary is None and self.is_light:
            async with connection.lock:
                if connection.express.send(self, query, params):
                    return self
        await super().execute(query, params, prepare=prepare, binary=binary)
        if connection._pipeline is not None:
            _remember(query, params)
        return self

    def _arrived(self) -> None:
        if self._conn._pipeline is not None and self.pgresult is None:
            raise NeedsResultError

    @property
    def rowcount(self) -> int:
        self._arrived()
        return super().rowcount

    @property
    def statusmessage(self) -> str | None:
        self._arrived()
        return super().statusmessage

    @property
    def description(self) -> Any:
        self._arrived()
        return super().description


class AsyncHandlerConnection(psycopg.AsyncConnection[Any]):
    """The asynchronous form."""

    guarded = False
    touched = False
    """Whether anything was asked of it while it was guarded: a handler that raises before that has nothing to be undone."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cursor_factory = AsyncHandlerCursor
        self._adapters = Adapters(psycopg.adapters)
        self.express = Express(self)

    async def wait(self, *arguments: Any, **options: Any) -> Any:
        if self.guarded:
            self.touched = True
        return await super().wait(*arguments, **options)

    async def commit(self) -> None:
        if self.guarded:
            raise misuse("commit()")
        await super().commit()

    async def rollback(self) -> None:
        if self.guarded:
            raise misuse("rollback()")
        await super().rollback()

    async def set_autocommit(self, value: bool) -> None:
        if self.guarded:
            raise misuse("set_autocommit()")
        await super().set_autocommit(value)

    async def close(self) -> None:
        if self.guarded:
            raise misuse("close()")
        await super().close()

    async def __aexit__(self, *exception: object) -> None:
        if self.guarded:
            raise misuse("`async with ctx.connection:`")
        await super().__aexit__(*exception)  # type: ignore[arg-type]

    async def tpc_begin(self, *arguments: Any) -> NoReturn:
        raise misuse("tpc_begin()")


def renew(connection: HandlerConnection | AsyncHandlerConnection) -> None:
    """Take back what a handler may have set: the engine's own statements, and the next handler, would meet it."""
    connection.row_factory = tuple_row
    if isinstance(connection, HandlerConnection):
        connection.cursor_factory = HandlerCursor
    else:
        connection.cursor_factory = AsyncHandlerCursor


Open = Callable[[], HandlerConnection]
OpenAsync = Callable[[], Awaitable[AsyncHandlerConnection]]


class ConnectionLostError(Exception):
    """The connection to PostgreSQL is gone; what was under way has not happened, or the ledger knows that it has."""
