"""Claims and completions of external commands: a few connections that all external handlers of a worker share.

What cannot be stored is found out one by one, so that it costs its own command only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

import psycopg

from onceward_consumer.connections import AsyncHandlerConnection, ConnectionLostError, OpenAsync
from onceward_consumer.drivers import AsyncDriver
from onceward_consumer.executors import LOST, Backoff
from onceward_consumer.failure_outcomes import outcome_of
from onceward_consumer.groups import PASSING
from onceward_consumer.items import Engine, Item
from onceward_consumer.leases import complete, complete_plain, is_plain, refusal
from onceward_consumer.outcomes import Busy, Dead
from onceward_consumer.redaction import describe
from onceward_consumer.reports import report
from onceward_consumer.script import Script
from onceward_schemas.errors import DatabaseError

Result = TypeVar("Result")

HANDED_BACK = Busy(timedelta(0))
_COMPLETIONS = 2
"""Transactions that complete commands at the same time; meanwhile the next batch gathers."""
_LOCKED_SECONDS = 0.2


class ClosingError(Exception):
    """The worker stops and the database is away: nothing can be made durable any more."""


class RefusedError(Exception):
    """Something in the transaction cannot be stored, however often it is tried. Its cause says why."""


class Desk:
    """A few connections that all external handlers of a worker share, for claims and completions."""

    def __init__(self, engine: Engine, open_: OpenAsync, size: int) -> None:
        self._engine = engine
        self._open = open_
        self._free: asyncio.LifoQueue[AsyncHandlerConnection | None] = asyncio.LifoQueue()
        for _ in range(size):
            self._free.put_nowait(None)
        self._pending: list[tuple[Sequence[Item], asyncio.Future[bool]]] = []
        self._more = asyncio.Event()
        self._closing = asyncio.Event()
        self.backoff = Backoff("external handlers")

    async def transact(self, script: Callable[[], Script[Result]], *, refusable: bool = False) -> Result:
        """Run a script on a free connection, again and again while the database is away.

        Raises: ClosingError when closing meanwhile; RefusedError if `refusable`.
        """
        while True:
            connection = await self._free.get()
            try:
                if connection is None or connection.closed:
                    connection = await self._open()
                result = await AsyncDriver(connection, self._engine).run(script())
                self.backoff.succeeded()
                return result
            except Exception as error:
                lost = isinstance(error, ConnectionLostError | DatabaseError)
                if refusable and not lost and refusal(error):
                    raise RefusedError from error
                if not isinstance(error, LOST):
                    raise
                passing = isinstance(error, PASSING)
                seconds = _LOCKED_SECONDS if passing else self.backoff.failed(error)
                if connection is not None and not passing:
                    with contextlib.suppress(psycopg.Error):
                        await connection.close()
                    connection = None
            finally:
                self._free.put_nowait(connection)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), seconds)
            if self._closing.is_set():
                raise ClosingError

    async def complete(self, items: Sequence[Item]) -> bool:
        """Return once the outcomes of a command and its followers are durable; with those of others, in one transaction.

        True says that PostgreSQL refused what the first was to leave: it ended otherwise, and the others are handed back.

        Raises: ClosingError.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._pending.append((items, future))
        self._more.set()
        return await future

    async def run(self) -> None:
        """Complete what comes, until cancelled."""
        under_way: set[asyncio.Task[None]] = set()
        while True:
            await self._more.wait()
            if len(under_way) >= _COMPLETIONS:
                await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            self._more.clear()
            batch, self._pending = self._pending, []
            if batch:
                task = asyncio.create_task(self._complete(batch))
                under_way.add(task)
                task.add_done_callback(under_way.discard)

    async def _complete(self, batch: Sequence[tuple[Sequence[Item], asyncio.Future[bool]]]) -> None:
        items = [item for some, _ in batch for item in some]
        script = complete_plain if all(is_plain(item) for item in items) else complete
        error: BaseException | None = None
        refused: set[UUID] = set()
        try:
            try:
                await self.transact(_repeatable(script, items, self._engine), refusable=True)
            except RefusedError:
                for some, _ in batch:
                    if await self._complete_apart(some):
                        refused.add(some[0].id)
            report(items, self._engine)
        except BaseException as raised:
            error = raised
            self._engine.hands.drop(items)
        for some, future in batch:
            if future.done():
                continue
            if error is None:
                future.set_result(some[0].id in refused)
            else:
                future.set_exception(error if isinstance(error, ClosingError) else ClosingError())

    async def _complete_apart(self, items: Sequence[Item]) -> bool:
        """Complete a command alone, as a failure if it cannot be stored, and hand back its followers."""
        first, *others = items
        refused = False
        try:
            await self.transact(_repeatable(complete, [first], self._engine), refusable=True)
        except RefusedError as error:
            refused = True
            await self._refuse(first, error.__cause__ or error)
        if others:
            for item in others:
                item.outcome = HANDED_BACK
            await self.transact(_repeatable(complete, others, self._engine))
        return refused

    async def _refuse(self, item: Item, error: BaseException) -> None:
        item.drafts, item.run_items = [], []
        if not isinstance(item.outcome, Busy):
            item.outcome = outcome_of(error, item, self._engine)
        try:
            await self.transact(_repeatable(complete, [item], self._engine), refusable=True)
        except RefusedError:
            item.envelope = None
            if not isinstance(item.outcome, Busy):
                item.outcome = Dead("unstorable", describe(error))
            await self.transact(_repeatable(complete, [item], self._engine))

    def close(self) -> None:
        """Do not wait for a database that is away any more."""
        self._closing.set()

    async def disconnect(self) -> None:
        """Close the connections."""
        while not self._free.empty():
            connection = self._free.get_nowait()
            if connection is not None:
                with contextlib.suppress(psycopg.Error):
                    await connection.close()


def _repeatable(
    script: Callable[[Sequence[Item], Engine], Script[None]], items: Sequence[Item], engine: Engine
) -> Callable[[], Script[None]]:
    """The script as often as it takes: what a try that was rolled back noted on the items is undone first."""
    before = [(item.outcome, item.known) for item in items]

    def again() -> Script[None]:
        for item, (outcome, known) in zip(items, before, strict=True):
            item.outcome, item.known = outcome, known
        return script(items, engine)

    return again
