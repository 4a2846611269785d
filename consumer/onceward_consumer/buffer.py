"""The lanes as threads share them: bounded in records and bytes, with waiting for work and for room."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from onceward_consumer.deliveries import Assignment, Delivery, Kind
from onceward_consumer.lanes import Lanes, Run
from onceward_consumer.throttles import Throttle
from onceward_consumer.turns import Charge, LaneRules

_GREED: Final = 4
"""A lane may hold so many times of what is left free for all: alone four fifths, two lanes four ninths each."""


class Share:
    """What one lane has in the buffer."""

    __slots__ = ("bytes", "records", "running")

    def __init__(self) -> None:
        self.records = 0
        """Fetched and not finished."""
        self.bytes = 0
        self.running = 0
        """Those of them that are with a runner."""


class Buffer:
    """Deliveries between the poller, which adds, and the executors, which take and give back."""

    def __init__(
        self,
        *,
        most_records: int = 10_000,
        most_bytes: int = 64 << 20,
        runners: int = 4,
        lanes: Mapping[str, LaneRules] = MappingProxyType({}),
        throttle: Throttle | None = None,
        narrow: Mapping[Kind, int] | None = None,
    ) -> None:
        """`lanes` names the lanes that share it; where there is one, or none is named, each may fill it.

        `narrow` has the kinds that only so many runners may have something of at the same time.
        """
        self._narrow = dict(narrow or {})
        self._places: Counter[Kind] = Counter()
        self._turned_away: set[Kind] = set()
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._room = threading.Condition(self._lock)
        self._left = threading.Condition(self._lock)
        self._leaving = 0
        self._out: set[Run] = set()
        self._lanes = Lanes(lanes, throttle)
        self._several = len(lanes) > 1
        self._throttle = throttle
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._runners = max(1, runners)
        self._idle = 0
        self._own: dict[str, threading.Condition] = {}
        """For each lane with runners of its own, where they wait."""
        self._waiting_for: frozenset[str] = frozenset()
        self._listeners: dict[Kind, Callable[[], None]] = {}
        self._shares: dict[str, Share] = {name: Share() for name in lanes}
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
            fetched = tuple(deliveries)
            self._lanes.extend(fetched)
            self._count(fetched, 1)
            if self._throttle is not None:
                self._overflow()
            self._tell()

    def _count(self, deliveries: Iterable[Delivery], sign: int) -> None:
        name: str | None = None
        share: Share | None = None
        for delivery in deliveries:
            if share is None or delivery.lane is not name:
                name = delivery.lane
                share = self._share(name)
            size = sign * delivery.size
            share.records += sign
            share.bytes += size
            self.records += sign
            self.bytes += size

    def _share(self, lane: str) -> Share:
        found = self._shares.get(lane)
        return found if found is not None else self._shares.setdefault(lane, Share())

    def take(
        self, most: Mapping[Kind, Callable[[int], int]], timeout: float, pokes: int, *, only: str | None = None
    ) -> list[Run]:
        """Wait for work and take it: of the lane whose turn it is, and the first of these kinds that it has some of.

        `most` gives for each kind the largest group for a number of waiting deliveries. Nothing but the lane `only` is taken
        where that is given. Empty after `timeout` seconds, when poked since `pokes` was read, or when closed.
        """
        until = time.monotonic() + timeout
        with self._lock:
            while not self.closed and self.pokes == pokes:
                if runs := self._take(most, only=only):
                    return runs
                now = time.monotonic()
                if now >= until:
                    break
                wake = self._lanes.next_wake()
                seconds = min(until, wake if wake is not None else until) - now
                if only is not None:
                    self._own.setdefault(only, threading.Condition(self._lock)).wait(seconds)
                    continue
                self._idle += 1
                self._work.wait(seconds)
                self._idle -= 1
            return []

    def take_any(self, most: Mapping[Kind, Callable[[int], int]], *, only: str | None = None) -> list[Run]:
        """The same without waiting."""
        with self._lock:
            return [] if self.closed else self._take(most, only=only)

    def take_now(self, kind: Kind, most: Callable[[int], int], *, per_key: int | None = None) -> list[Run]:
        """The same of one kind, with so many of a key at most."""
        with self._lock:
            return [] if self.closed else self._take({kind: most}, per_key)

    def poke(self) -> None:
        """Let everybody who waits for work look around."""
        with self._lock:
            self.pokes += 1
            for work in (self._work, *self._own.values()):
                work.notify_all()
            for wake in self._listeners.values():
                wake()

    def permitted(self, names: Iterable[str]) -> None:
        """These limits may have room again: the keys that wait for them are asked for once more."""
        with self._lock:
            if self._lanes.permitted(names):
                self._tell()

    def throttled_by(self, throttle: Throttle) -> None:
        """Ask it from now on; what is with runners already was not asked for."""
        with self._lock:
            self._throttle = throttle
            self._lanes.throttled_by(throttle)

    def behind(self) -> dict[str, int]:
        """How many keys wait behind each limit."""
        with self._lock:
            return self._lanes.behind()

    def next_wake(self) -> float | None:
        """When the first resting key may run, on the monotonic clock."""
        with self._lock:
            return self._lanes.next_wake()

    def _take(
        self, most: Mapping[Kind, Callable[[int], int]], per_key: int | None = None, *, only: str | None = None
    ) -> list[Run]:
        if self._narrow:
            most = {kind: largest for kind, largest in most.items() if self._has_place(kind)}
        lanes = self._lanes
        if lanes.next_wake() is not None and lanes.wake(time.monotonic()):
            self._tell()
        while (lane := lanes.next(most, only)) is not None:
            limit = max(1, most[lane.kind](-(-lane.waiting // self._runners)))
            runs, dropped = lanes.take_from(lane, limit, per_key=per_key)
            if dropped:
                self._count(dropped, -1)
                self._tell()
            if self._throttle is not None:
                self._overflow()
            if runs:
                self._out.update(runs)
                if lane.kind in self._narrow:
                    self._places[lane.kind] += 1
                count = sum([len(run.deliveries) for run in runs])
                self._share(lane.name).running += count
                if self._several and len(lane.pool.clocks) > 1:
                    runs[0].charge = Charge(lane, count, time.monotonic(), free=only is not None)
                return runs
        return []

    def _overflow(self) -> None:
        """Have parked what waits behind limits beyond half of what its lane may hold."""
        records, size = self._bounds()
        for name in list(self._lanes.limited):
            if self._lanes.overflow(name, records // 2, size // 2):
                self._tell()

    def release(
        self, runs: Iterable[tuple[Run, list[Delivery]]], *, rest_seconds: float = 0.0, alone: bool = False
    ) -> None:
        """Give keys back, each with the deliveries that must run again; the others of the run are finished.

        With `rest_seconds` a key that has to run again rests so long first, and with `alone` it then comes alone.
        """
        with self._lock:
            at = time.monotonic() + rest_seconds if rest_seconds else None
            if self._throttle is not None:
                runs = tuple(runs)
                self._lanes.left(run for run, _ in runs)
            if self._narrow:
                runs = tuple(runs)
                for kind in {run.deliveries[0].kind for run, _ in runs} & self._narrow.keys():
                    self._places[kind] -= 1
            for run, again in runs:
                self._out.discard(run)
                deliveries = run.deliveries
                share = self._share(deliveries[0].lane)
                share.running -= len(deliveries)
                if run.charge is not None:
                    run.charge.settle(time.monotonic())
                if again:
                    kept = {id(delivery) for delivery in again}
                    self._finish([d for d in deliveries if id(d) not in kept], share)
                else:
                    self._finish(deliveries, share)
                run.queue.alone = alone and bool(again)
                self._lanes.release(run, again, at=at if again else None)
            self._tell()
            if self._leaving:
                self._left.notify_all()

    def _finish(self, deliveries: list[Delivery], share: Share) -> None:
        """Deliveries of one key, so of one lane and mostly of one partition."""
        size = 0
        last: Assignment | None = None
        finish: Callable[[int], None] | None = None
        for delivery in deliveries:
            size += delivery.size
            if (assignment := delivery.assignment) is None:
                continue
            if assignment is not last:
                last, finish = assignment, assignment.finish
            if finish is not None:
                finish(delivery.offset)
        count = len(deliveries)
        share.records -= count
        share.bytes -= size
        self.records -= count
        self.bytes -= size
        self.finished += count

    def enter(self, kind: Kind) -> bool:
        """Whether one more runner may have something of the kind; if so, it gives its place back with `leave`."""
        if kind not in self._narrow:
            return True
        with self._lock:
            if not self._has_place(kind):
                self._turned_away.add(kind)
                return False
            self._places[kind] += 1
            return True

    def leave(self, kind: Kind) -> None:
        """It has nothing of the kind any more."""
        if kind in self._narrow:
            with self._lock:
                self._places[kind] -= 1
                self._tell()

    def turned_away(self) -> set[Kind]:
        """Kinds that runners could not enter, and now could; says so once."""
        if not self._turned_away:
            return set()
        with self._lock:
            found = {kind for kind in self._turned_away if self._has_place(kind)}
            self._turned_away -= found
            return found

    def _has_place(self, kind: Kind) -> bool:
        return self._places[kind] < self._narrow.get(kind, self._places[kind] + 1)

    def wait_for_runners(self, assignments: Iterable[Assignment], timeout: float) -> int:
        """Wait until nothing of these partitions is with a runner; returns how many records still are after `timeout` s."""
        leaving = {id(assignment) for assignment in assignments}

        def left() -> int:
            return sum(id(delivery.assignment) in leaving for run in self._out for delivery in run.deliveries)

        with self._lock:
            self._leaving += 1
            self._left.wait_for(lambda: not left(), timeout)
            self._leaving -= 1
            return left()

    def drop_revoked(self) -> None:
        """Forget what waits from partitions that are no longer ours."""
        with self._lock:
            self._count(self._lanes.drop_revoked(), -1)
            self._tell()

    def full(self, before: frozenset[str] = frozenset()) -> frozenset[str]:
        """The lanes of which nothing more may be fetched now.

        Those that were so `before` stay so until a quarter is free, and where lanes share the buffer, half of what they may
        hold: then the poller does not wait but pauses, and a pause throws away what the client has fetched ahead.
        """
        records, size = self._bounds()
        if self._several:
            return frozenset(
                [
                    name
                    for name, share in list(self._shares.items())
                    if _reached(share.records, records // 2 if name in before else records, name in before)
                    or _reached(share.bytes, size // 2 if name in before else size, name in before)
                ]
            )
        if before:
            records, size = records * 3 // 4, size * 3 // 4
        full = _reached(self.records, records, bool(before)) or _reached(self.bytes, size, bool(before))
        return frozenset(self._shares) if full else frozenset()

    def _bounds(self) -> tuple[int, int]:
        """How many records and bytes a lane may hold: the more is free for the others, the more."""
        if self._several:
            return max(1, _GREED * (self._most_records - self.records)), max(
                1, _GREED * (self._most_bytes - self.bytes)
            )
        return self._most_records, self._most_bytes

    def wait_for_room(self, timeout: float, lanes: frozenset[str]) -> bool:
        """Wait until these lanes are not full any more. False after `timeout` seconds."""
        with self._lock:
            self._waiting_for = lanes
            found = self._room.wait_for(lambda: self.closed or self._roomy(), timeout)
            self._waiting_for = frozenset()
            return found

    def _roomy(self) -> bool:
        return not (self.full(self._waiting_for) & self._waiting_for)

    def close(self) -> None:
        """Hand out nothing any more."""
        with self._lock:
            self.closed = True
            self._tell()

    def waiting(self, kind: Kind) -> int:
        """How many deliveries of the kind are queued."""
        return self._lanes.waiting(kind)

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
            waiting = Counter({name: share.records - share.running for name, share in self._shares.items()})
            return +waiting, oldest, +Counter({name: share.running for name, share in self._shares.items()})

    def oldest_running(self) -> dict[str, int]:
        """By lane, when the oldest was recorded that is with a runner, in ms."""
        with self._lock:
            oldest: dict[str, int] = {}
            for run in self._out:
                for delivery in run.deliveries:
                    oldest[delivery.lane] = min(delivery.timestamp_ms, oldest.get(delivery.lane, delivery.timestamp_ms))
            return oldest

    def _tell(self) -> None:
        if self._idle:
            self._work.notify_all()
        for lane, work in self._own.items():
            if self.closed or self._lanes.has(lane):
                work.notify_all()
        if self._waiting_for and (self.closed or self._roomy()):
            self._room.notify_all()
        for kind, wake in self._listeners.items():
            if self.closed or self._lanes.ready(kind):
                wake()


def _reached(what: int, bound: int, before: bool) -> bool:
    """Whether a bound is reached; one that was reached `before` has to be gone below or met."""
    return what > bound if before else what >= bound
