"""Calls the schedules' functions in threads: one that does not return holds up its own schedule and no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeAlias

from onceward_producer.rows import Encoder
from onceward_runtime import events, log
from onceward_scheduler.definitions import Definition
from onceward_scheduler.planning import DueSchedule, Planned, plan

_IN_TIME_SECONDS = 0.5
_TOO_LONG_SECONDS = 30.0
_THREADS = 32
_Work: TypeAlias = tuple[Future[Planned], Definition, DueSchedule]


@dataclass(slots=True)
class _Call:
    schedule: DueSchedule
    future: Future[Planned]
    since: float
    late: bool = False
    reported: bool = False


class Functions:
    """The calls of one scheduler. `wake` is called when a late one has returned."""

    def __init__(self, app: str, codec: Encoder, wake: Callable[[], None]) -> None:
        self._app = app
        self._codec = codec
        self._wake = wake
        self._waiting: SimpleQueue[_Work | None] = SimpleQueue()
        self._threads = 0
        self._calls: dict[str, _Call] = {}

    def free(self, ids: list[str]) -> list[str]:
        """Those whose function is not running; nothing new is begun of the others."""
        return [each for each in ids if each not in self._calls] if self._calls else ids

    def plan(self, due: list[DueSchedule], known: Mapping[str, Definition]) -> list[Planned]:
        """Plan what is due; returns what is ready in time, late calls of before included."""
        for one in due:
            self._calls[one.id] = self._begin(one, known[one.id])
        if due:
            wait([self._calls[one.id].future for one in due], timeout=_IN_TIME_SECONDS)
        ready = [schedule_id for schedule_id, call in self._calls.items() if call.future.done()]
        planned = [self._calls.pop(schedule_id).future.result() for schedule_id in ready]
        for call in self._calls.values():
            self._watch(call)
        return planned

    def stop(self) -> None:
        """Begin no more. What runs cannot be ended; what it returns is not used."""
        for _ in range(self._threads):
            self._waiting.put(None)

    def _begin(self, schedule: DueSchedule, definition: Definition) -> _Call:
        future: Future[Planned] = Future()
        self._waiting.put((future, definition, schedule))
        if self._threads < min(_THREADS, len(self._calls) + 1):
            self._threads += 1
            # Daemons, unlike an executor's threads: one that hangs does not keep the process from ending.
            threading.Thread(target=self._work, name=f"onceward-schedule-{self._threads}", daemon=True).start()
        return _Call(schedule, future, time.monotonic())

    def _work(self) -> None:
        while (work := self._waiting.get()) is not None:
            future, definition, schedule = work
            try:
                future.set_result(plan(self._app, definition, schedule, self._codec))
            except Exception as error:
                future.set_exception(error)

    def _watch(self, call: _Call) -> None:
        if not call.late:
            call.late = True
            call.future.add_done_callback(lambda _: self._wake())
        seconds = time.monotonic() - call.since
        if seconds > _TOO_LONG_SECONDS and not call.reported:
            call.reported = True
            log.emit(
                events.TICK_FAILED,
                app=self._app,
                schedule=call.schedule.id,
                scheduled_at=call.schedule.next_at,
                error=f"its function has not returned for {round(seconds)} s",
            )
