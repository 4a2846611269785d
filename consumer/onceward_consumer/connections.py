"""The connection that a handler gets: psycopg's, without the means to end the engine's transaction.

In a pipelined group a statement's result arrives later. Asking for it waits for it here (sync), or ends the group's
pipelined run so that it runs again without (async, where an attribute cannot wait).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Any, NoReturn, TypeVar

import psycopg
from psycopg import sql

from onceward_schemas.errors import TransactionError

Row = TypeVar("Row")

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


class HandlerCursor(psycopg.Cursor[Row]):
    """A cursor that waits for a pipelined result when its outcome is looked at."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> HandlerCursor[Row]:
        if self._conn.guarded:  # type: ignore[attr-defined]
            check_query(query)
        return super().execute(query, params, **options)

    @property
    def rowcount(self) -> int:
        self._fetch_pipeline()
        return super().rowcount

    @property
    def statusmessage(self) -> str | None:
        self._fetch_pipeline()
        return super().statusmessage

    @property
    def description(self) -> Any:
        self._fetch_pipeline()
        return super().description


class HandlerConnection(psycopg.Connection[Any]):
    """The synchronous form. The engine calls `finish` and `undo`; commit and rollback are refused while guarded."""

    guarded = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cursor_factory = HandlerCursor

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


class AsyncHandlerCursor(psycopg.AsyncCursor[Row]):
    """The asynchronous form."""

    async def execute(self, query: Any, params: Any = None, **options: Any) -> AsyncHandlerCursor[Row]:
        if self._conn.guarded:  # type: ignore[attr-defined]
            check_query(query)
        return await super().execute(query, params, **options)

    def _arrived(self) -> None:
        if self._conn._pipeline is not None and self.pgresult is None:
            self._conn.needs_result = True  # type: ignore[attr-defined]
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
    needs_result = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.cursor_factory = AsyncHandlerCursor

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


Open = Callable[[], HandlerConnection]
OpenAsync = Callable[[], Awaitable[AsyncHandlerConnection]]


class ConnectionLostError(Exception):
    """The connection to PostgreSQL is gone; what was under way has not happened, or the ledger knows that it has."""
