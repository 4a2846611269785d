"""The thread with the event loop, on which asynchronous and external handlers run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from onceward_consumer.buffer import Buffer
from onceward_consumer.cell_calls import CellCalls
from onceward_consumer.connections import OpenAsync
from onceward_consumer.deliveries import kind_of
from onceward_consumer.desk import Desk
from onceward_consumer.executors import TaskRunner
from onceward_consumer.external import ExternalRunner
from onceward_consumer.gauges import Load
from onceward_consumer.handlers import Handler
from onceward_consumer.items import Engine
from onceward_consumer.loop_watch import LoopWatch
from onceward_consumer.menus import menu_here
from onceward_consumer.moods import Mood
from onceward_consumer.release import Wakeups


class LoopThread:
    """Started and stopped as a whole."""

    def __init__(
        self,
        engine: Engine,
        buffer: Buffer,
        wakeups: Wakeups,
        mood: Mood,
        *,
        open_: OpenAsync,
        tasks: int,
        kept: Sequence[str | None],
        group_size: int,
        leased: Callable[[], bool],
        cell_calls: CellCalls | None = None,
        blocked_after: timedelta = timedelta(seconds=0.5),
    ) -> None:
        """`tasks` is the number of connections for asynchronous handlers, and again for external ones.

        `kept` gives for each task the lane that it is kept for, if any.
        """
        self._engine = engine
        self._buffer = buffer
        self._wakeups = wakeups
        self._mood = mood
        self._open = open_
        self._size = tasks
        self._kept = kept
        self._group_size = group_size
        self._leased = leased
        self._cell_calls = cell_calls
        self._watch: LoopWatch | None = None
        self._blocked_seconds = blocked_after.total_seconds()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="onceward-loop", daemon=True)
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runners: list[TaskRunner] = []
        self._external: list[ExternalRunner] = []
        self._desk: Desk | None = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Returns once the loop runs."""
        self._thread.start()
        self._started.wait(10)

    @property
    def running(self) -> bool:
        """Whether the thread lives."""
        return self._thread.is_alive()

    def failures(self) -> list[BaseException]:
        """What went wrong in the engine itself."""
        found = [self.failure, *(external.failure for external in self._external)]
        return [failure for failure in found if failure is not None]

    @property
    def busy(self) -> int:
        """How many runners have something in hand."""
        return sum(runner.busy for runner in self._runners) + sum(runner.busy for runner in self._external)

    def loads(self) -> dict[str, Load]:
        """How busy tasks and external calls are."""
        size = sum(runner.size for runner in self._external)
        calls = Load(size, sum(r.running for r in self._external), sum(r.abandoned for r in self._external))
        tasks = Load(len(self._runners), sum(runner.busy for runner in self._runners))
        return {kind: load for kind, load in (("task", tasks), ("external", calls)) if load.size}

    @property
    def silent_seconds(self) -> float:
        """For how long the loop has not turned."""
        return self._watch.silent_seconds if self._watch is not None else 0.0

    @property
    def lost(self) -> bool:
        """Whether the database was away when somebody last asked."""
        return any(runner.backoff.lost for runner in self._runners) or (
            self._desk is not None and self._desk.backoff.lost
        )

    @property
    def calling(self) -> bool:
        """Whether external calls run, after the end too: a call in a thread cannot be ended."""
        return any(runner.calls for runner in self._external) or (
            self.running and any(runner.busy for runner in self._external)
        )

    def stop(self, timeout: float) -> None:
        """Finish what runs, at most for so long; what is left then is cancelled."""
        self._stopping = True
        loop = self._loop
        if loop is None or not self._thread.is_alive():
            return
        loop.call_soon_threadsafe(self._stop_runners)
        self._thread.join(max(0.0, timeout))
        for give_up, seconds in ((self._cancel_calls, 1.5 if self._external else 0.0), (self._cancel, 0.5)):
            if self._thread.is_alive():
                loop.call_soon_threadsafe(give_up)
                self._thread.join(seconds)

    def _stop_runners(self) -> None:
        for runner in self._runners:
            runner.stop()
        for external in self._external:
            external.stop()

    def _cancel_calls(self) -> None:
        for external in self._external:
            external.cancel()

    def _cancel(self) -> None:
        if self._desk is not None:
            self._desk.close()
        for task in self._tasks:
            task.cancel()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            if not self._stopping:
                self.failure = error
        finally:
            self._started.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watch = watch = LoopWatch(self._loop, threading.get_ident(), self._engine.group, self._blocked_seconds)
        watch.start()
        if kinds := menu_here(self._engine.handlers, is_async=True, group_size=self._group_size).kinds:
            self._runners = [
                TaskRunner(
                    f"onceward-task-{number}",
                    engine=self._engine,
                    buffer=self._buffer,
                    open_=self._open,
                    wakeups=self._wakeups,
                    mood=self._mood,
                    most=self._group_size,
                    only=self._kept[number],
                )
                for number in range(self._size)
            ]
            for kind in kinds:
                self._buffer.listen(kind, self._poke)
        desk = Desk(self._engine, self._open, self._size)
        for handler in self._engine.handlers.values():
            if handler.mode == "external":
                self._add_external(handler, desk)
        self._tasks = [asyncio.create_task(runner.run()) for runner in self._runners]
        self._tasks += [asyncio.create_task(external.run()) for external in self._external]
        completing = asyncio.create_task(desk.run())
        self._desk = desk
        self._started.set()
        try:
            await asyncio.gather(*self._tasks)
        finally:
            watch.stop()
            completing.cancel()
            await desk.disconnect()

    def _add_external(self, handler: Handler, desk: Desk) -> None:
        runner = ExternalRunner(
            handler,
            engine=self._engine,
            buffer=self._buffer,
            desk=desk,
            wakeups=self._wakeups,
            leased=self._leased,
            cell_calls=self._cell_calls,
        )
        self._external.append(runner)
        self._buffer.listen(kind_of(handler), self._poke)

    def _poke(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for runner in self._runners:
            runner.work.set()
        for external in self._external:
            external.work.set()
