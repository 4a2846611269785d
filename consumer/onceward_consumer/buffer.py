"""The lanes as threads share them: bounded in records and bytes, with waiting for work and for room."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable

from onceward_consumer.deliveries import Delivery, Kind
from onceward_consumer.lanes import Lanes, Run


class Buffer:
    """Deliveries between the poller, which adds, and the executors, which take and give back."""

    def __init__(self, *, most_records: int = 10_000, most_bytes: int = 64 << 20, runners: int = 4) -> None:
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._lanes = Lanes()
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._runners = max(1, runners)
        self._idle = 0
        self._waiting_for_room = False
        self._listeners: dict[Kind, Callable[[], None]] = {}
        self._by_lane: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self.records = 0
        """Fetched and not finished."""
        self.bytes = 0
        self.pokes = 0
        """How often `poke` was called."""
        self.closed = False
        self.finished = 0
        """How many ever finished: what benchmarks count."""

    def listen(self, kind: Kind, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, when there may be work of the kind."""
        self._listeners[kind] = wake

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Queue what was fetched, in order."""
        with self._lock:
            for delivery in deliveries:
                self._lanes.add(delivery)
                self.records += 1
                self._by_lane[delivery.lane] += 1
                self.bytes += delivery.size
            self._tell()

    def take(self, kind: Kind, most: Callable[[int], int], timeout: float, pokes: int) -> list[Run]:
        """Wait for work and take it; `most` gives the largest group for a number of waiting deliveries.

        Empty after `timeout` seconds, when poked since `pokes` was read, or when closed.
        """
        until = time.monotonic() + timeout
        with self._lock:
            while not self.closed and self.pokes == pokes:
                if runs := self._take(kind, most):
                    return runs
                now = time.monotonic()
                if now >= until:
                    break
                wake = self._lanes.next_wake()
                self._idle += 1
                self._work.wait(min(until, wake if wake is not None else until) - now)
                self._idle -= 1
            return []

    def take_now(self, kind: Kind, most: Callable[[int], int], *, per_key: int | None = None) -> list[Run]:
        """Take what may run now, without waiting."""
        with self._lock:
            return [] if self.closed else self._take(kind, most, per_key)

    def poke(self) -> None:
        """Let everybody who waits for work look around."""
        with self._lock:
            self.pokes += 1
            self._work.notify_all()
            for wake in self._listeners.values():
                wake()

    def next_wake(self) -> float | None:
        """When the first resting key may run, on the monotonic clock."""
        with self._lock:
            return self._lanes.next_wake()

    def _take(self, kind: Kind, most: Callable[[int], int], per_key: int | None = None) -> list[Run]:
        if self._lanes.next_wake() is not None and self._lanes.wake(time.monotonic()):
            self._tell()
        if not self._lanes.ready(kind):
            return []
        waiting = self._lanes.waiting[kind]
        runs, dropped = self._lanes.take(kind, max(1, most(-(-waiting // self._runners))), per_key=per_key)
        for run in runs:
            self._running[run.deliveries[0].lane] += len(run.deliveries)
        self._gone(dropped)
        return runs

    def release(
        self, runs: Iterable[tuple[Run, list[Delivery]]], *, rest_seconds: float = 0.0, alone: bool = False
    ) -> None:
        """Give keys back, each with the deliveries that must run again; the others of the run are finished.

        With `rest_seconds` a key that has to run again rests so long first, and with `alone` it then comes alone.
        """
        with self._lock:
            at = time.monotonic() + rest_seconds if rest_seconds else None
            for run, again in runs:
                self._running[run.deliveries[0].lane] -= len(run.deliveries)
                if again:
                    kept = {id(delivery) for delivery in again}
                    self._finish([d for d in run.deliveries if id(d) not in kept])
                else:
                    self._finish(run.deliveries)
                run.queue.alone = alone and bool(again)
                self._lanes.release(run, again, at=at if again else None)
            self._tell()

    def _finish(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            assignment = delivery.assignment
            if assignment is not None and assignment.active:
                assignment.finish(delivery.offset)
            self.records -= 1
            self._by_lane[delivery.lane] -= 1
            self.bytes -= delivery.size
            self.finished += 1

    def drop_revoked(self) -> None:
        """Forget what waits from partitions that are no longer ours."""
        with self._lock:
            self._gone(self._lanes.drop_revoked())
            self._tell()

    def _gone(self, dropped: Iterable[Delivery]) -> None:
        for delivery in dropped:
            self.records -= 1
            self._by_lane[delivery.lane] -= 1
            self.bytes -= delivery.size

    @property
    def full(self) -> bool:
        """Whether fetching must wait."""
        return self.records >= self._most_records or self.bytes >= self._most_bytes

    def wait_for_room(self, timeout: float) -> bool:
        """Wait until a quarter of the buffer is free. False after `timeout` seconds."""
        with self._lock:
            self._waiting_for_room = True
            found = self._room.wait_for(lambda: self.closed or self._roomy(), timeout)
            self._waiting_for_room = False
            return found

    def _roomy(self) -> bool:
        return self.records <= self._most_records * 3 // 4 and self.bytes <= self._most_bytes * 3 // 4

    def close(self) -> None:
        """Hand out nothing any more."""
        with self._lock:
            self.closed = True
            self._tell()

    def waiting(self, kind: Kind) -> int:
        """How many deliveries of the kind are queued."""
        return self._lanes.waiting[kind]

    @property
    def keys(self) -> int:
        """How many keys have something queued or running."""
        return self._lanes.keys

    def look(self) -> tuple[Counter[str], dict[str, int], Counter[str]]:
        """By lane: how many wait, when the oldest that waits was recorded (in ms), and how many are with a runner."""
        with self._lock:
            oldest: dict[str, int] = {}
            for head in self._lanes.heads():
                oldest[head.lane] = min(head.timestamp_ms, oldest.get(head.lane, head.timestamp_ms))
            return Counter(self._by_lane) - self._running, oldest, +self._running

    def _tell(self) -> None:
        if self._idle:
            self._work.notify_all()
        if self._waiting_for_room and (self.closed or self._roomy()):
            self._room.notify_all()
        for kind, wake in self._listeners.items():
            if self.closed or self._lanes.ready(kind):
                wake()
