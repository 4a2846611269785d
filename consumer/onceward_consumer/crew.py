"""The threads that run synchronous transactional handlers, and the watch over their calls.

A call over its limit is given up: its session is ended at PostgreSQL, so that its transaction can never commit, and a
fresh thread takes the place and the commands of the one that hangs.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import psycopg

from onceward_consumer.connections import Open
from onceward_consumer.executors import ThreadRunner
from onceward_consumer.failures import OverrunError
from onceward_consumer.items import Engine, Item
from onceward_consumer.lanes import Run
from onceward_consumer.overruns import Stopwatch, elapsed, limit_of, overdue, tell
from onceward_consumer.release import Wakeups
from onceward_consumer.reports import fields
from onceward_runtime import events, log
from onceward_runtime.sql import query
from onceward_schemas.errors import DatabaseError

_END_SESSION: Final = query("onceward_consumer", "session_end")
_LEAST_SECONDS: Final = 0.02
_MOST_SECONDS: Final = 1.0

Make = Callable[[str, Sequence[Run], int], ThreadRunner]


@dataclass(frozen=True, slots=True)
class Abandoned:
    """A thread that still runs a call that was given up."""

    runner: ThreadRunner
    item: Item
    where: str | None


class Crew:
    """Started and stopped as a whole."""

    def __init__(self, size: int, make: Make, *, engine: Engine, open_: Open, wakeups: Wakeups) -> None:
        """`make` builds a runner from its name, the commands that it begins with, and its place."""
        self._make = make
        self._engine = engine
        self._open = open_
        self._wakeups = wakeups
        self._runners = [make(f"onceward-runner-{number}", (), number) for number in range(size)]
        self._abandoned: list[Abandoned] = []
        self._replaced = 0
        self._most_abandoned = 2 * size
        self._stopping = threading.Event()
        self._over = threading.Event()
        handlers = [h for h in engine.handlers.values() if h.mode != "external" and not h.is_async]
        shortest = min((limit_of(handler, engine)[0] for handler in handlers), default=None)
        self._every = min(_MOST_SECONDS, max(_LEAST_SECONDS, (shortest or _MOST_SECONDS) / 10))
        self._watch = threading.Thread(target=self._run, name="onceward-watch", daemon=True) if handlers else None

    def start(self) -> None:
        """Begin."""
        for runner in self._runners:
            runner.start()
        if self._watch is not None:
            self._watch.start()

    def stop(self) -> None:
        """Take nothing any more; what runs is finished, unless the database is away."""
        self._stopping.set()
        for runner in list(self._runners):
            runner.stop()

    def join(self, timeout: float) -> None:
        """Wait for the end, at most for so long; threads whose calls were given up are not waited for."""
        until = time.monotonic() + timeout
        for place in range(len(self._runners)):
            while True:
                runner = self._runners[place]  # may be replaced meanwhile
                left = until - time.monotonic()
                if (runner.join(min(left, 0.2)) and runner is self._runners[place]) or left <= 0:
                    break
        self._over.set()

    @property
    def size(self) -> int:
        """How many runners there are."""
        return len(self._runners)

    @property
    def busy(self) -> int:
        """How many have something in hand."""
        return sum(runner.busy for runner in self._runners)

    @property
    def abandoned(self) -> int:
        """How many threads run calls that were given up."""
        return len(self._abandoned)

    @property
    def lost(self) -> bool:
        """Whether the database was away when one of them last asked."""
        return any(runner.backoff.lost for runner in self._runners)

    def failures(self) -> list[BaseException]:
        """What a thread died of; or that too many hang, which only the end of the process can mend."""
        found = [runner.failure for runner in self._runners if runner.failure is not None]
        if len(self._abandoned) > self._most_abandoned:
            hanging = sorted(
                {f"{each.item.handler.type} at {each.where}" for each in self._abandoned if each.item.handler}
            )
            found.append(
                OverrunError("max_runtime", f"{len(self._abandoned)} threads hang in handlers: {', '.join(hanging)}.")
            )
        return found

    def _run(self) -> None:
        watch = Stopwatch(self._every, time.perf_counter())
        while not self._over.wait(self._every):
            now = time.perf_counter()
            watch.turned(now)
            for place, runner in enumerate(self._runners):
                if (items := overdue(runner.calls, self._engine, watch, now)) is not None:
                    self._replace(place, runner, items[0])
            if self._abandoned:
                self._look_after_the_abandoned()

    def _replace(self, place: int, runner: ThreadRunner, item: Item) -> None:
        where = tell(item, self._engine, runner.thread_id)
        self._abandoned.append(Abandoned(runner, item, where))
        if runner.backend is not None:
            self._end_session(runner.backend)
        self._replaced += 1
        fresh = self._make(f"onceward-runner-{place}-{self._replaced}", runner.runs, place)
        self._runners[place] = fresh
        fresh.start()
        if self._stopping.is_set():
            fresh.stop()
        self._wakeups.set()  # it may have been draining keys

    def _end_session(self, backend: int) -> None:
        """Its locks are free after that. Where it cannot be done, nothing commits either: nobody is there to say so."""
        with contextlib.suppress(psycopg.Error, DatabaseError), self._open() as connection:
            connection.execute(_END_SESSION, (backend,))

    def _look_after_the_abandoned(self) -> None:
        for each in [each for each in self._abandoned if each.runner.join(0)]:
            self._abandoned.remove(each)
            log.emit(events.HANDLER_SLOW, **fields(each.item, self._engine), seconds=elapsed(each.item))
