"""Carry out a transaction script: on a thread, or on asyncio. All decisions are the script's."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from onceward_consumer.batch_context import conclude, opened
from onceward_consumer.connections import (
    AsyncHandlerConnection,
    ConnectionLostError,
    HandlerConnection,
    HandlerCursor,
    queue_command,
    renew,
)
from onceward_consumer.handlers import call_within
from onceward_consumer.items import Engine, Item
from onceward_consumer.losses import lost
from onceward_consumer.overruns import AbandonedError
from onceward_consumer.redaction import describe
from onceward_consumer.script import (
    STEERING,
    Begin,
    Call,
    Commit,
    EscapedError,
    Execute,
    Fetch,
    Rollback,
    Script,
    Statement,
    Step,
)
from onceward_consumer.spans import NO_SPAN, collecting, span
from onceward_schemas.errors import TransactionError

Result = TypeVar("Result")

_BEGIN = Statement("begin", None)
_SAVEPOINT = "savepoint onceward"
_RELEASE = "release savepoint onceward"
_UNDO = "rollback to savepoint onceward"


class _Answer:
    """A statement's result; rows are only built when somebody looks."""

    __slots__ = ("_cursor",)

    def __init__(self, cursor: psycopg.Cursor[Any]) -> None:
        self._cursor = cursor

    @property
    def count(self) -> int:
        return self._cursor.rowcount

    @property
    def rows(self) -> list[Any]:
        return self._cursor.fetchall()


class _Rows:
    """A statement's result, rows and all."""

    __slots__ = ("count", "rows")

    def __init__(self, count: int, rows: list[Any]) -> None:
        self.count = count
        self.rows = rows


class Driver:
    """Scripts on one connection, one after the other, in the thread that calls."""

    def __init__(
        self, connection: HandlerConnection, engine: Engine, calls: list[Sequence[Item]] | None = None
    ) -> None:
        """`calls` has the commands that a handler is being called with; whoever takes it off gives that call up."""
        self._connection = connection
        self._engine = engine
        self._calls = [] if calls is None else calls
        self._pipelined = False
        self._prefix: list[Statement] = []
        self._called: list[Item] = []
        self._began = 0.0
        self._traced = collecting()
        self._suspects: list[Item] = []
        self._raised: BaseException | None = None

    def run(self, script: Script[Result]) -> Result:
        """Run a script to its end.

        Raises: ConnectionLostError; and what the script lets pass.
        """
        answer: Any = None
        error: BaseException | None = None
        try:
            while True:
                try:
                    step = script.send(answer) if error is None else script.throw(error)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                answer = error = None
                try:
                    answer = self._carry_out(step)
                except AbandonedError:
                    raise
                except BaseException as raised:
                    if self._connection.closed:
                        called, cause = self._called or self._suspects, raised if self._called else self._raised
                        raise lost(called, self._engine, cause or raised, self._began) from raised
                    error = self._raised = raised
        finally:
            script.close()
            if not self._connection.closed:
                with contextlib.suppress(psycopg.Error):
                    self._rollback()

    def _carry_out(self, step: Step) -> Any:
        match step:
            case Call():
                return self._call(step)
            case Fetch():
                return self._fetch(step.statements)
            case Execute():
                return self._execute(step.statements)
            case Begin():
                return self._begin(step.pipelined)
            case Commit():
                self._commit()
                self._called = []
                return None
            case Rollback():
                return self._rollback()

    def _begin(self, pipelined: bool) -> None:
        self._suspects, self._called = self._called, []  # a session's end may show only after its last words
        self._began = time.monotonic()
        self._pipelined = pipelined
        if pipelined:
            with self._connection.lock:
                self._connection.express.enter()
            self._command(_BEGIN.query)
        else:
            self._prefix = [_BEGIN]

    def _fetch(self, statements: list[Statement]) -> list[_Answer]:
        execute = self._connection.execute
        if self._pipelined:
            answers = [_Answer(execute(query, params)) for query, params in statements]
            with self._connection.lock:
                self._connection.express.sync()
            return answers
        prefix, self._prefix = self._prefix, []
        with self._connection.pipeline():
            answers = [_Answer(execute(query, params)) for query, params in (*prefix, *statements)]
        return answers[len(prefix) :]

    def _execute(self, statements: list[Statement]) -> None:
        execute = self._connection.execute
        if self._pipelined:
            for query, params in statements:
                execute(query, params)
        else:
            self._fetch(statements)

    def _call(self, step: Call) -> None:
        item, savepoint, connection = step.item, step.savepoint, self._connection
        handler, batch, context, given = opened(step, self._engine, connection)
        self._called += batch or (item,)
        if savepoint:
            self._command(_SAVEPOINT)
        item.started = started = time.perf_counter()
        connection.guarded, connection.touched = True, False
        self._calls.append(batch or (item,))
        try:
            try:
                with span(item, self._engine, batch) if self._traced else NO_SPAN:
                    try:
                        answer = handler.function(given, context)
                        if batch:
                            conclude(answer, batch, handler)
                    except STEERING as error:
                        raise EscapedError(describe(error)) from error
            finally:
                try:
                    self._calls.pop()
                except IndexError:
                    raise AbandonedError from None
            connection.guarded = False
            if savepoint:
                self._command(_RELEASE)
        except AbandonedError:
            raise
        except BaseException:
            connection.guarded = False
            if savepoint and not connection.closed:
                self._undo()
            raise
        finally:
            connection.guarded = False
            item.touched = connection.touched
            renew(connection)
            context.close()
            item.seconds = (time.perf_counter() - started) / (len(batch) or 1)

    def _command(self, command: str) -> None:
        if self._pipelined:
            queue_command(self._connection, command.encode())
        else:
            self._connection.execute(command)

    def _undo(self) -> None:
        if not self._pipelined and self._connection.info.transaction_status == TransactionStatus.IDLE:
            raise _ended()
        self._command(_UNDO)
        self._command(_RELEASE)

    def _commit(self) -> None:
        connection = self._connection
        if not self._pipelined:
            if connection.info.transaction_status == TransactionStatus.IDLE:
                raise _ended()
            _committed(connection.execute("commit").statusmessage)
            return
        cursor: HandlerCursor[Any] = HandlerCursor(connection)
        with connection.lock:
            connection.express.command(cursor, b"commit")
        self._leave()
        _committed(cursor.statusmessage)

    def _leave(self) -> None:
        if self._pipelined:
            self._pipelined = False
            with self._connection.lock:
                self._connection.express.leave()

    def _rollback(self) -> None:
        self._prefix = []
        with contextlib.suppress(psycopg.Error):
            self._leave()
        if not self._connection.closed and self._connection.pgconn.transaction_status != TransactionStatus.IDLE:
            self._connection.rollback()


class AsyncDriver:
    """The same on asyncio; one task at a time."""

    def __init__(self, connection: AsyncHandlerConnection, engine: Engine) -> None:
        self._connection = connection
        self._engine = engine
        self._pipeline = contextlib.AsyncExitStack()
        self._pipelined = False
        self._sync: Callable[[], Awaitable[None]]
        self._prefix: list[Statement] = []
        self._called: list[Item] = []
        self._began = 0.0
        self._traced = collecting()
        self._suspects: list[Item] = []
        self._raised: BaseException | None = None

    async def run(self, script: Script[Result]) -> Result:
        """As `Driver.run`."""
        answer: Any = None
        error: BaseException | None = None
        try:
            while True:
                try:
                    step = script.send(answer) if error is None else script.throw(error)
                except StopIteration as end:
                    return end.value  # type: ignore[no-any-return]
                answer = error = None
                try:
                    answer = await self._carry_out(step)
                except BaseException as raised:
                    if self._connection.closed:
                        called, cause = self._called or self._suspects, raised if self._called else self._raised
                        raise lost(called, self._engine, cause or raised, self._began) from raised
                    if isinstance(raised, asyncio.CancelledError) and is_cancelled():
                        raise  # the worker's own wish, not the handler's failure
                    error = self._raised = raised
        finally:
            script.close()
            if not self._connection.closed:
                with contextlib.suppress(psycopg.Error):
                    await self._rollback()

    def outlived(self) -> ConnectionLostError:
        """What to raise where `run` was cancelled, since its transaction cannot be there any more."""
        ended = psycopg.errors.IdleInTransactionSessionTimeout("The handler did not end with its transaction.")
        return lost(self._called or self._suspects, self._engine, ended, self._began)

    async def _carry_out(self, step: Step) -> Any:
        match step:
            case Call():
                return await self._call(step)
            case Fetch():
                return await self._fetch(step.statements)
            case Execute():
                return await self._execute(step.statements)
            case Begin():
                return await self._begin(step.pipelined)
            case Commit():
                await self._commit()
                self._called = []
                return None
            case Rollback():
                return await self._rollback()

    async def _begin(self, pipelined: bool) -> None:
        self._suspects, self._called = self._called, []  # a session's end may show only after its last words
        self._began = time.monotonic()
        self._pipelined = pipelined
        if pipelined:
            self._sync = (await self._pipeline.enter_async_context(self._connection.pipeline())).sync
            await self._connection.execute("begin")
        else:
            self._prefix = [_BEGIN]

    async def _fetch(self, statements: list[Statement]) -> list[_Rows]:
        execute = self._connection.execute
        if self._pipelined:
            cursors = [await execute(query, params) for query, params in statements]
            await self._sync()
        else:
            prefix, self._prefix = self._prefix, []
            if len(statements) == 1 and not prefix:
                cursors = [await execute(*statements[0])]
                return [_Rows(c.rowcount, await c.fetchall() if c.description else []) for c in cursors]
            async with self._connection.pipeline():
                cursors = [await execute(query, params) for query, params in (*prefix, *statements)]
            cursors = cursors[len(prefix) :]
        return [_Rows(c.rowcount, await c.fetchall() if c.description else []) for c in cursors]

    async def _execute(self, statements: list[Statement]) -> None:
        if self._pipelined:
            for query, params in statements:
                await self._connection.execute(query, params)
        else:
            await self._fetch(statements)

    async def _call(self, step: Call) -> None:
        item, savepoint, connection = step.item, step.savepoint, self._connection
        handler, batch, context, given = opened(step, self._engine, connection)
        self._called += batch or (item,)
        if savepoint:
            await self._command(_SAVEPOINT)
        item.started = started = time.perf_counter()
        connection.guarded, connection.touched = True, False
        try:
            with span(item, self._engine, batch) if self._traced else NO_SPAN:
                try:
                    answer = await call_within(handler, given, context)
                    if batch:
                        conclude(answer, batch, handler)
                except STEERING as error:
                    raise EscapedError(describe(error)) from error
            connection.guarded = False
            if savepoint:
                await self._command(_RELEASE)
        except BaseException:
            connection.guarded = False
            if savepoint and not connection.closed:
                await self._undo()
            raise
        finally:
            connection.guarded = False
            item.touched = connection.touched
            renew(connection)
            context.close()
            item.seconds = (time.perf_counter() - started) / (len(batch) or 1)

    async def _command(self, command: str) -> None:
        if self._pipelined:
            queue_command(self._connection, command.encode())
        else:
            await self._connection.execute(command)

    async def _undo(self) -> None:
        if not self._pipelined and self._connection.info.transaction_status == TransactionStatus.IDLE:
            raise _ended()
        await self._command(_UNDO)
        await self._command(_RELEASE)

    async def _commit(self) -> None:
        connection = self._connection
        if not self._pipelined:
            if connection.info.transaction_status == TransactionStatus.IDLE:
                raise _ended()
            _committed((await connection.execute("commit")).statusmessage)
            return
        cursor = await connection.execute("commit")
        self._pipelined = False
        await self._pipeline.aclose()
        _committed(cursor.statusmessage)

    async def _rollback(self) -> None:
        self._pipelined = False
        self._prefix = []
        with contextlib.suppress(psycopg.Error):
            await self._pipeline.aclose()
        if not self._connection.closed and self._connection.info.transaction_status != TransactionStatus.IDLE:
            await self._connection.rollback()


def is_cancelled() -> bool:
    """Whether somebody cancelled this task, rather than code in it raising CancelledError of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _committed(said: str | None) -> None:
    """A COMMIT in a failed transaction is answered with ROLLBACK, and is no error to libpq."""
    if said != "COMMIT":
        raise psycopg.errors.InFailedSqlTransaction(f"the transaction ended with {said}")


def _ended() -> TransactionError:
    return TransactionError(
        "The handler ended the transaction that its effect shares with the ledger.",
        remedy="Leave commit and rollback to the engine; use `with ctx.connection.transaction():` for a savepoint.",
    )
