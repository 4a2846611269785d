"""Runs external handlers: effects outside of this database, each under a lease (design D4).

Claims and completions of many commands share transactions. A key's next command starts when the completion of the one
before is durable, so that a crash never reorders effects.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from onceward_consumer.buffer import Buffer
from onceward_consumer.call_threads import CallThreads
from onceward_consumer.cell_calls import CellCalls
from onceward_consumer.context import HandlerContext
from onceward_consumer.deliveries import kind_of
from onceward_consumer.desk import HANDED_BACK, ClosingError, Desk, RefusedError
from onceward_consumer.drivers import is_cancelled
from onceward_consumer.executors import items_of
from onceward_consumer.failure_outcomes import outcome_of
from onceward_consumer.failures import OverrunError
from onceward_consumer.handlers import Handler, call_within
from onceward_consumer.items import Engine, Item
from onceward_consumer.lanes import Run
from onceward_consumer.leases import claim, claim_released
from onceward_consumer.outcomes import Busy, Dead, Discarded, Done, Failed, Outcome, Parked
from onceward_consumer.overruns import elapsed, tell, too_long
from onceward_consumer.redaction import describe
from onceward_consumer.release import Wakeups, over
from onceward_consumer.reports import fields, report
from onceward_consumer.script import STEERING, EscapedError, Script
from onceward_consumer.spans import span
from onceward_runtime import events, log

_PER_KEY = 8
"""Commands of one key that are claimed together."""
_CLAIMS = 2
"""Transactions that claim commands at the same time; meanwhile the next batch gathers."""


class ExternalRunner:
    """All calls of one external handler in this worker."""

    def __init__(
        self,
        handler: Handler,
        *,
        engine: Engine,
        buffer: Buffer,
        desk: Desk,
        wakeups: Wakeups,
        leased: Callable[[], bool],
        cell_calls: CellCalls | None = None,
    ) -> None:
        self._handler = handler
        self._kind = kind_of(handler)
        self._engine = engine
        self._buffer = buffer
        self._desk = desk
        self._wakeups = wakeups
        self._leased = leased
        self._cell_calls = cell_calls
        self._slots = asyncio.Semaphore(handler.concurrency)
        self._most = handler.concurrency * 4
        self._limiter = engine.limiter
        self._claimed = 0
        self._claiming = 0
        self._released = 0
        self._releasing = False
        self._stopping = False
        self._keys: set[asyncio.Task[None]] = set()
        self._threads = None if handler.is_async else CallThreads(f"onceward-external-{handler.type}")
        self._calls: set[Future[None]] = set()
        self.running = 0
        """Calls under way."""
        self.abandoned = 0
        """Threads that still run a call that was given up."""
        self.work = asyncio.Event()
        self.failure: BaseException | None = None
        """What went wrong in the engine itself, or that too many threads hang; the worker ends over it."""

    @property
    def busy(self) -> int:
        """How many keys have a command claimed."""
        return len(self._keys)

    @property
    def size(self) -> int:
        """How many calls it makes at once."""
        return self._handler.concurrency

    @property
    def calls(self) -> int:
        """How many calls run in threads whose commands are still theirs, also those that nobody waits for any more."""
        return len(self._calls)

    def stop(self) -> None:
        """Claim nothing any more, and hand back what has not begun."""
        self._stopping = True
        self.work.set()

    def cancel(self) -> None:
        """End the calls that still run, and hand their commands back; a call in a thread cannot be ended."""
        for task in self._keys:
            task.cancel()

    async def run(self) -> None:
        """Until stopped and finished."""
        while not self._stopping:
            self.work.clear()
            limited, most = self._bounds()
            may_release = self._released < most and not self._releasing and self._leased()
            if may_release and self._wakeups.due(self._kind):
                self._releasing = True
                self._spawn(self._release())
            free = most - self._claimed
            if free > 0 and self._claiming < _CLAIMS and self._leased():
                per_key = 1 if limited else _PER_KEY
                runs = self._buffer.take_now(self._kind, lambda _, free=free: free, per_key=per_key)  # type: ignore[misc]
                if runs:
                    self._claimed += sum(len(run.deliveries) for run in runs)
                    self._claiming += 1
                    self._spawn(self._claim(runs))
                    continue
            wake = self._buffer.next_wake()
            timeout = 0.5 if wake is None else min(0.5, max(0.001, wake - time.monotonic()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.work.wait(), timeout)
        while self._keys:
            await asyncio.wait(self._keys)

    def _bounds(self) -> tuple[bool, int]:
        """Whether limits may hold, and how much is claimed at most: what meets a limit is called as soon as it is claimed."""
        limited = self._limiter is not None and self._limiter.concerns(self._handler)
        return limited, self._handler.concurrency if limited else self._most

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._keys.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._keys.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self.failure is None:
            self.failure = error

    async def _claim(self, runs: Sequence[Run]) -> None:
        items = items_of(runs, self._engine)

        by_run: dict[int, list[Item]] = {}
        for item in items:
            by_run.setdefault(id(item.run), []).append(item)
        try:
            try:
                await self._desk.transact(self._claiming_of(items), refusable=True)
            except RefusedError:
                for some in by_run.values():
                    await self._claim_first(some)
        except BaseException as error:
            self._claimed -= len(items)
            self._buffer.release([(run, run.deliveries) for run in runs])
            if isinstance(error, ClosingError):
                return
            raise
        finally:
            self._claiming -= 1
            self.work.set()
        report([item for item in items if item.outcome is not None], self._engine)
        for run in runs:
            self._spawn(self._key(run, by_run[id(run)]))

    def _claiming_of(self, items: Sequence[Item]) -> Callable[[], Script[None]]:
        def script() -> Script[None]:
            for item in items:
                item.again()
            return claim(items, self._engine, short=True)

        return script

    async def _claim_first(self, items: Sequence[Item]) -> None:
        """Claim the first of a key alone, as a dead letter if that is refused; the others come again after it."""
        first, *others = items
        for item in others:
            item.again()
            item.outcome = HANDED_BACK
        try:
            await self._desk.transact(self._claiming_of([first]), refusable=True)
        except RefusedError as error:
            first.refuse("unstorable", describe(error.__cause__ or error))
            await self._desk.transact(self._claiming_of([first]))

    async def _key(self, run: Run, items: list[Item]) -> None:
        """The claimed commands of one key, one after the other."""
        unsettled = [item for item in items if item.outcome is None]
        try:
            with contextlib.suppress(ClosingError):
                await self._one_after_the_other(unsettled)
        finally:
            again = [item for item in items if item in unsettled or isinstance(item.outcome, Busy)]
            rest = max((i.outcome.delay.total_seconds() for i in again if isinstance(i.outcome, Busy)), default=0.0)
            self._claimed -= len(items)
            if self._limiter is not None:
                self._limiter.unused(items)
            self._buffer.release([(run, [item.delivery for item in again])], rest_seconds=rest)
            self.work.set()
        if any(item.heads for item in items):
            self._wakeups.set()

    async def _one_after_the_other(self, unsettled: list[Item]) -> None:
        """Run them, and take each off the list once its outcome is durable."""
        while unsettled:
            item, *others = unsettled
            await self._execute(item)
            stop = self._after(item)
            settled = [item]
            if stop is not None:
                for follower in others:
                    follower.outcome = stop
                settled += others
            refused = await self._desk.complete(settled)
            del unsettled[: len(settled)]
            if refused and unsettled:  # they may have to wait for it now: claimed again, they see
                for follower in unsettled:
                    follower.outcome = HANDED_BACK
                await self._desk.complete(list(unsettled))
                unsettled.clear()

    def _after(self, item: Item) -> Busy | Parked | None:
        """What becomes of the claimed followers of a command with this outcome; None when they go on."""
        outcome = item.outcome
        if isinstance(outcome, Busy) or self._stopping:
            return HANDED_BACK
        if not item.ordered:
            return None
        strict = isinstance(outcome, Dead) and self._handler.order == "strict"
        return Parked("held") if isinstance(outcome, Failed) or strict or item.unresolved else None

    async def _execute(self, item: Item) -> None:
        """Call the handler and set the outcome."""
        async with self._slots:
            deadline = item.envelope.context.deadline if item.envelope is not None else None
            if self._stopping or not self._leased() or not self._may_call(item):
                item.outcome = HANDED_BACK
            elif deadline is not None and deadline < self._engine.clock.earliest():
                item.outcome = Discarded("deadline")
            else:
                try:
                    if self._in_cell(item) and await self._call_in_cell(item):
                        self._called(item, item.outcome)
                        return
                    await self._call(item)
                    item.outcome = Done()
                    self._called(item, item.outcome)
                except BaseException as error:
                    if not (isinstance(error, asyncio.CancelledError) and is_cancelled()):
                        self._called(item, error)
                        item.drafts, item.run_items = [], []
                        item.outcome = outcome_of(error, item, self._engine)
                    elif not self._stopping or (self._threads is not None and not self._in_cell(item)):
                        raise
                    else:
                        item.outcome = HANDED_BACK  # the drain time-out is over, and the call has been ended

    def _may_call(self, item: Item) -> bool:
        return self._limiter is None or self._limiter.may_call(item.delivery)

    def _called(self, item: Item, ended: BaseException | Outcome | None) -> None:
        if self._limiter is not None:
            self._limiter.called(item.delivery, self._handler, ended)

    def _in_cell(self, item: Item) -> bool:
        return self._cell_calls is not None and self._cell_calls.wanted(item)

    async def _call_in_cell(self, item: Item) -> bool:
        """False where it has to be called here after all."""
        assert self._cell_calls is not None
        try:
            return await asyncio.wrap_future(self._cell_calls.submit(item))
        except asyncio.CancelledError:
            self._cell_calls.end(item)
            raise

    async def _call(self, item: Item) -> None:
        context = HandlerContext(item, self._engine, None)
        self.running += 1
        item.started = started = time.perf_counter()
        try:
            if self._threads is None:
                with span(item, self._engine):
                    await call_within(self._handler, item.command, context)
            else:
                await self._call_in_thread(self._threads, item, context)
        finally:
            self.running -= 1
            item.seconds = time.perf_counter() - started

    async def _call_in_thread(self, threads: CallThreads, item: Item, context: HandlerContext) -> None:
        """Wait for a call in a thread, at most for its max_runtime; then it is given up, for it cannot be ended."""
        limit = self._handler.max_runtime
        thread: list[int] = []
        call = threads.submit(functools.partial(self._call_here, item, context, thread))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        try:
            async with asyncio.timeout(None if limit is None else limit.total_seconds()) as timer:
                await asyncio.wrap_future(call)
        except TimeoutError as error:
            if not timer.expired():
                raise
            if call.done():
                return call.result()
            self._give_up(item, call, thread)
            raise too_long(self._handler) from error

    def _give_up(self, item: Item, call: Future[None], thread: Sequence[int]) -> None:
        """Its slot is free, its thread is not. What it ends with counts for nothing: the attempt is over."""
        self._calls.discard(call)
        self.abandoned += 1
        where = tell(item, self._engine, thread[0] if thread else None)
        loop = asyncio.get_running_loop()
        attempt = fields(item, self._engine)

        def ended() -> None:
            self.abandoned -= 1
            log.emit(events.HANDLER_SLOW, **attempt, seconds=elapsed(item))

        def in_its_thread(_: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(ended)

        call.add_done_callback(in_its_thread)
        if self.abandoned > 2 * self._handler.concurrency and self.failure is None:
            self.failure = OverrunError(
                "max_runtime", f"{self.abandoned} threads hang in {self._handler.type}, this one at {where}."
            )

    def _call_here(self, item: Item, context: HandlerContext, thread: list[int]) -> None:
        thread.append(threading.get_ident())
        with span(item, self._engine):
            try:
                self._handler.function(item.command, context)
            except STEERING as error:
                raise EscapedError(describe(error)) from error

    async def _release(self) -> None:
        """Lease the next follower of keys whose head is resolved, and begin to run them."""
        most = self._bounds()[1] - self._released
        try:
            found = await self._desk.transact(lambda: claim_released(self._engine, self._kind, most))
        except ClosingError:
            return
        finally:
            self._releasing = False
            self.work.set()
        report([item for item in found.items if item.outcome is not None], self._engine)
        self._released += len(found.items)
        for item in found.items:
            self._spawn(self._follower(item))
        self._wakeups.wake(found.others)

    async def _follower(self, item: Item) -> None:
        """Run one; then the next of its key may be run, by whomever it takes."""
        try:
            if item.outcome is None:
                with contextlib.suppress(ClosingError):
                    await self._one_after_the_other([item])
        finally:
            self._released -= 1
            over([item], self._engine)
            self._wakeups.wake([self._kind])
