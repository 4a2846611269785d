"""The runners of transactional handlers: threads for synchronous ones, tasks on one event loop for asynchronous ones.

Each has a connection of its own. While PostgreSQL is away a runner keeps what it has taken and tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterable, Sequence

import psycopg

from onceward_consumer.batches import run_batch
from onceward_consumer.buffer import Buffer
from onceward_consumer.connections import (
    AsyncHandlerConnection,
    ConnectionLostError,
    HandlerConnection,
    Open,
    OpenAsync,
)
from onceward_consumer.deliveries import Delivery, Kind, kind_of
from onceward_consumer.drivers import AsyncDriver, Driver, Result
from onceward_consumer.groups import run_group
from onceward_consumer.items import Engine, Item, prepared
from onceward_consumer.lanes import Run
from onceward_consumer.losses import SessionTimedOutError
from onceward_consumer.menus import menu_here
from onceward_consumer.moods import Mood
from onceward_consumer.outcomes import Busy
from onceward_consumer.overruns import AbandonedError, longest_seconds
from onceward_consumer.pace import MOST
from onceward_consumer.release import Released, Wakeups, release_group
from onceward_consumer.reports import report
from onceward_consumer.script import Script
from onceward_runtime import events, log
from onceward_schemas.errors import DatabaseError

LOST = (ConnectionLostError, DatabaseError, psycopg.Error)
_SHORTEST_REST = 0.05
_LONGEST_REST = 5.0


class Backoff:
    """Waits between tries while the database is away; tells once that it went, and once that it is back."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._rest = _SHORTEST_REST
        self._since: float | None = None

    @property
    def lost(self) -> bool:
        """Whether the last try failed."""
        return self._since is not None

    def failed(self, error: BaseException) -> float:
        """Note a failure; returns how many seconds to wait."""
        if isinstance(error, SessionTimedOutError):
            return 0.0
        if self._since is None:
            self._since = time.monotonic()
            log.emit(events.DATABASE_LOST, service=self._service, error=error)
        rest = self._rest
        self._rest = min(_LONGEST_REST, self._rest * 2)
        return rest

    def succeeded(self) -> None:
        """Note a success."""
        if self._since is not None:
            log.emit(events.DATABASE_BACK, service=self._service, seconds=time.monotonic() - self._since)
            self._since = None
        self._rest = _SHORTEST_REST


class RunnerThread:
    """A thread that takes work until it is told to stop; what it does is in `_serve`, what it lets go of in `_close`."""

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.backoff = Backoff(name)
        self.busy = False
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def thread_id(self) -> int | None:
        """The thread's identity, once started."""
        return self._thread.ident

    def stop(self) -> None:
        """Take nothing any more; what runs is finished, unless the database is away."""
        self._stopping.set()

    def join(self, timeout: float) -> bool:
        """Wait for the end; False when it takes longer."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._serve()
        except AbandonedError:
            pass  # another has taken its place, and what it had in hand
        except BaseException as error:
            self.failure = error
            raise
        finally:
            self._close()

    def _serve(self) -> None:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class ThreadRunner(RunnerThread):
    """One thread and its connection."""

    def __init__(
        self,
        name: str,
        *,
        engine: Engine,
        buffer: Buffer,
        open_: Open,
        wakeups: Wakeups,
        mood: Mood,
        most: int = MOST,
        runs: Sequence[Run] = (),
        only: str | None = None,
    ) -> None:
        """It begins with `runs`, which another runner had in hand. With `only` it is kept for that lane."""
        super().__init__(name)
        self._engine = engine
        self._buffer = buffer
        self._open = open_
        self._wakeups = wakeups
        self._mood = mood
        self._menu = menu_here(engine.handlers, is_async=False, group_size=most)
        self._connection: HandlerConnection | None = None
        self._only = only
        self.runs = runs
        """What it has in hand."""
        self.calls: list[Sequence[Item]] = []
        """The commands that a handler is being called with. Whoever takes it off gives the call up, and the runner with it."""
        self.backend: int | None = None
        """The process of its session at PostgreSQL."""

    def _serve(self) -> None:
        if self.runs:
            self._process(self.runs)
        while not self._stopping.is_set():
            pokes = self._buffer.pokes
            due = None if self._only is not None else next(filter(self._wakeups.due, self._menu.kinds), None)
            if due is not None:
                self._release(due)
                continue
            runs = self._buffer.take(self._menu.most, 0.5, pokes, only=self._only)
            if runs:
                self._process(runs)

    def _process(self, runs: Sequence[Run]) -> None:
        self.runs, self.busy = runs, True
        self._work(runs)
        self.runs, self.busy = (), False

    def _work(self, runs: Sequence[Run]) -> None:
        started = time.perf_counter()
        while True:
            items = items_of(runs, self._engine)
            try:
                self._driver().run(script_of(items, self._engine, self._mood))
                break
            except LOST as error:
                if not self._rest(error):
                    give_back(self._buffer, runs)
                    return
        self.backoff.succeeded()
        finish(self._buffer, runs, items, self._engine, self._wakeups)
        self._menu.note(items[0].delivery.kind, len(items), time.perf_counter() - started)

    def _release(self, kind: Kind) -> None:
        if self._buffer.enter(kind):  # else it is asked again when there is room
            try:
                self._release_entered(kind)
            finally:
                self._buffer.leave(kind)
                self._wakeups.wake(self._buffer.turned_away())

    def _release_entered(self, kind: Kind) -> None:
        try:
            done = self._driver().run(release_group(self._engine, kind, mood=self._mood))
        except LOST as error:
            self._wakeups.set_for(kind)
            self._rest(error)
            return
        self.backoff.succeeded()
        finish_release(done, self._engine, self._wakeups)

    def _driver(self) -> Driver:
        if self._connection is None or self._connection.closed:
            self._connection = self._open()
            self.backend = self._connection.info.backend_pid
        return Driver(self._connection, self._engine, self.calls)

    def _rest(self, error: BaseException) -> bool:
        """Wait for the database to come back. False when there is no time left for it."""
        seconds = self.backoff.failed(error)
        self._close()
        return not self._stopping.wait(seconds)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.guarded = False
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None


class TaskRunner:
    """One task on the event loop and its connection."""

    def __init__(
        self,
        name: str,
        *,
        engine: Engine,
        buffer: Buffer,
        open_: OpenAsync,
        wakeups: Wakeups,
        mood: Mood,
        most: int = MOST,
        only: str | None = None,
    ) -> None:
        """With `only` it is kept for that lane."""
        self._engine = engine
        self._buffer = buffer
        self._open = open_
        self._wakeups = wakeups
        self._mood = mood
        self._menu = menu_here(engine.handlers, is_async=True, group_size=most)
        self._only = only
        self._connection: AsyncHandlerConnection | None = None
        self._stopping = asyncio.Event()
        self.work = asyncio.Event()
        self.backoff = Backoff(name)
        self.busy = False

    def stop(self) -> None:
        """Take nothing any more. On the loop's thread."""
        self._stopping.set()
        self.work.set()

    async def run(self) -> None:
        """Until stopped."""
        try:
            while not self._stopping.is_set():
                due = None if self._only is not None else next(filter(self._wakeups.due, self._menu.kinds), None)
                if due is not None:
                    await self._release(due)
                    continue
                runs = self._buffer.take_any(self._menu.most, only=self._only)
                if runs:
                    self.busy = True
                    await self._process(runs)
                    self.busy = False
                    continue
                self.work.clear()
                waiting = any(map(self._buffer.waiting, self._menu.kinds))
                if not waiting or self._buffer.next_wake() is not None:
                    wake = self._buffer.next_wake()
                    timeout = 0.5 if wake is None else min(0.5, max(0.0, wake - time.monotonic()))
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.work.wait(), timeout)
                else:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.work.wait(), 0.1)
        finally:
            await self._close()

    async def _process(self, runs: Sequence[Run]) -> None:
        started = time.perf_counter()
        while True:
            items = items_of(runs, self._engine)
            try:
                await self._run(script_of(items, self._engine, self._mood))
                break
            except LOST as error:
                if not await self._rest(error):
                    give_back(self._buffer, runs)
                    return
        self.backoff.succeeded()
        finish(self._buffer, runs, items, self._engine, self._wakeups)
        self._menu.note(items[0].delivery.kind, len(items), time.perf_counter() - started)

    async def _release(self, kind: Kind) -> None:
        if self._buffer.enter(kind):
            try:
                await self._release_entered(kind)
            finally:
                self._buffer.leave(kind)
                self._wakeups.wake(self._buffer.turned_away())

    async def _release_entered(self, kind: Kind) -> None:
        try:
            done = await self._run(release_group(self._engine, kind, mood=self._mood))
        except LOST as error:
            self._wakeups.set_for(kind)
            await self._rest(error)
            return
        self.backoff.succeeded()
        finish_release(done, self._engine, self._wakeups)

    async def _run(self, script: Script[Result]) -> Result:
        """Run a script. One that outlives its transaction by far hangs in a handler: it is cancelled."""
        driver = await self._driver()
        try:
            async with asyncio.timeout(longest_seconds(self._engine)) as timer:
                return await driver.run(script)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise driver.outlived() from error

    async def _driver(self) -> AsyncDriver:
        if self._connection is None or self._connection.closed:
            self._connection = await self._open()
        return AsyncDriver(self._connection, self._engine)

    async def _rest(self, error: BaseException) -> bool:
        seconds = self.backoff.failed(error)
        await self._close()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)
        return not self._stopping.is_set()

    async def _close(self) -> None:
        if self._connection is not None:
            self._connection.guarded = False
            with contextlib.suppress(psycopg.Error):
                await self._connection.close()
            self._connection = None


def script_of(items: Sequence[Item], engine: Engine, mood: Mood) -> Script[None]:
    """How items of one kind are run."""
    handler = items[0].handler
    if handler is not None and handler.mode == "batch" and items[0].delivery.overflow is None:
        return run_batch(items, engine)
    return run_group(items, engine, mood)


def items_of(runs: Iterable[Run], engine: Engine) -> list[Item]:
    """The deliveries of the runs as items, in order."""
    items = []
    for run in runs:
        for delivery in run.deliveries:
            item = prepared(delivery, engine)
            item.run = run
            items.append(item)
    return items


def finish(buffer: Buffer, runs: Sequence[Run], items: Sequence[Item], engine: Engine, wakeups: Wakeups) -> None:
    """Give the keys back after the commit; commands that are Busy come again."""
    again: dict[int, list[Delivery]] = {}
    rest = 0.0
    alone = False
    heads = False
    for item in items:
        heads = heads or item.heads
        if isinstance(item.outcome, Busy):
            again.setdefault(id(item.run), []).append(item.delivery)
            rest = max(rest, item.outcome.delay.total_seconds())
            alone = alone or item.delivery.stalls > 0
    if engine.limiter is not None and engine.limiter.active:
        engine.limiter.unused(items)
    buffer.release([(run, again.get(id(run), [])) for run in runs], rest_seconds=rest, alone=alone)
    report(items, engine)
    if heads:
        wakeups.set()
    elif kinds := buffer.turned_away():
        wakeups.wake(kinds)


def finish_release(done: Released, engine: Engine, wakeups: Wakeups) -> None:
    """Tell what became of parked followers after the commit; who has more of them is to look again."""
    if done.items:
        report(done.items, engine)
    if done.keys:
        wakeups.set()
    else:
        wakeups.wake(done.others)


def give_back(buffer: Buffer, runs: Iterable[Run]) -> None:
    """Give the keys back with everything still to be done."""
    buffer.release([(run, run.deliveries) for run in runs])


def kinds_of(engine: Engine) -> set[Kind]:
    """Which executors the app's handlers need; the synchronous one always, since unreadable records go there."""
    return {"sync"} | {kind_of(handler) for handler in engine.handlers.values()}
