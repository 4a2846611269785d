"""Calls the schedules' functions in threads: one that does not return holds up its own schedule and no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from onceward_producer.rows import Encoder
from onceward_runtime import events, log
from onceward_scheduler.definitions import Definition
from onceward_scheduler.planning import DueSchedule, Planned, plan

_IN_TIME_SECONDS = 0.5
_TOO_LONG_SECONDS = 30.0
_THREADS = 32


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
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="onceward-schedule")
        self._calls: dict[str, _Call] = {}

    def free(self, ids: list[str]) -> list[str]:
        """Those whose function is not running; nothing new is begun of the others."""
        return [each for each in ids if each not in self._calls] if self._calls else ids

    def plan(self, due: list[DueSchedule], known: Mapping[str, Definition]) -> list[Planned]:
        """Plan what is due; returns what is ready in time, late calls of before included."""
        calls = {one.id: self._begin(one, known[one.id]) for one in due}
        self._calls |= calls
        if calls:
            wait([call.future for call in calls.values()], timeout=_IN_TIME_SECONDS)
        ready = [schedule_id for schedule_id, call in self._calls.items() if call.future.done()]
        planned = [self._calls.pop(schedule_id).future.result() for schedule_id in ready]
        for call in self._calls.values():
            self._watch(call)
        return planned

    def stop(self) -> None:
        """Begin no more. What runs cannot be ended; what it returns is not used."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, schedule: DueSchedule, definition: Definition) -> _Call:
        future = self._threads.submit(plan, self._app, definition, schedule, self._codec)
        return _Call(schedule, future, time.monotonic())

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
