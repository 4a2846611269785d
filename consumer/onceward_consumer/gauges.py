"""What is measured rather than counted: queues, ages, and what waits in PostgreSQL."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import psycopg
from prometheus_client import Gauge

from onceward_consumer.buffer import Buffer
from onceward_runtime import events
from onceward_runtime.sql import query

_WAITING: Final = query("onceward_consumer", "waiting_counts")


class Load(NamedTuple):
    """How many runners of a kind there are, how many work, and how many threads hang in calls that were given up."""

    size: int
    busy: int
    hung: int = 0


class Gauges:
    """Sets the gauges of one worker; a label that is gone goes to zero."""

    def __init__(
        self,
        group: str,
        buffer: Buffer,
        *,
        ahead: Callable[[], Mapping[str, int]] = dict,
        runners: Callable[[], Mapping[str, Load]] = dict,
    ) -> None:
        """`ahead` gives for each lane how many records are finished that cannot be committed yet."""
        self._group = group
        self._buffer = buffer
        self._ahead = ahead
        self._runners = runners
        self._set: dict[Gauge, set[tuple[str, ...]]] = {}

    def memory(self) -> None:
        """What is in this process."""
        buffered, oldest_ms, running = self._buffer.look()
        now_ms = time.time() * 1000
        self._show(events.BUFFERED, {(lane,): count for lane, count in buffered.items()})
        self._show(events.IN_FLIGHT, {(lane,): count for lane, count in running.items()})
        ages: dict[tuple[str, ...], float] = {(lane,): max(0.0, (now_ms - at) / 1000) for lane, at in oldest_ms.items()}
        self._show(events.HEAD_AGE_SECONDS, ages)
        for lane, at in self._buffer.oldest_running().items():
            oldest_ms[lane] = min(at, oldest_ms.get(lane, at))
        unfinished: dict[tuple[str, ...], float] = {
            (lane,): max(0.0, (now_ms - at) / 1000) for lane, at in oldest_ms.items()
        }
        self._show(events.UNFINISHED_AGE_SECONDS, unfinished)
        self._show(events.OFFSETS_AHEAD, {(lane,): count for lane, count in self._ahead().items()})
        loads = {(self._group, kind): load for kind, load in self._runners().items()}
        self._show(events.RUNNERS, {labels: load.size for labels, load in loads.items()})
        self._show(events.RUNNERS_BUSY, {labels: load.busy for labels, load in loads.items()})
        self._show(events.RUNNERS_HUNG, {labels: load.hung for labels, load in loads.items()})

    def database(self, connection: psycopg.Connection[Any]) -> None:
        """What waits in PostgreSQL: the same in all workers of the group."""
        found: dict[str, dict[tuple[str, ...], float]] = {"held": {}, "parked": {}, "dead": {}}
        for what, lane, detail, count in connection.execute(_WAITING, {"group": self._group}).fetchall():
            labels = (self._group, lane) if what == "dead" else (self._group, lane, detail)
            found[what][labels] = count
        self._show(events.HELD_KEYS, found["held"])
        self._show(events.PARKED, found["parked"])
        self._show(events.DEAD_LETTERS_OPEN, found["dead"])

    def _show(self, gauge: Gauge, values: dict[tuple[str, ...], Any] | Counter[tuple[str, ...]]) -> None:
        known = self._set.setdefault(gauge, set())
        for labels in known - values.keys():
            gauge.labels(*labels).set(0)
        for labels, value in values.items():
            known.add(labels)
            gauge.labels(*labels).set(value)
