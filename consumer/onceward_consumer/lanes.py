"""Which command is next: a queue for each key, one runner per key always, keys in parallel. Pure; one thread at a time.

A key stays busy until its runner says so, whatever happens to partitions meanwhile: a partition that is revoked and comes
back adds to the queue of a key whose old runner still runs, and waits for it. A key whose head meets a limit waits in a list of
that limit, and is asked for again when the limit says so.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from types import MappingProxyType

from onceward_consumer.deliveries import Address, Delivery, Kind
from onceward_consumer.throttles import Throttle
from onceward_consumer.turns import Charge, Lane, LaneRules, Pool, next_lane

_PERMITTED = 64
"""Keys that are asked again at once when a limit has room; more follow while none of them is refused."""
_PARKER: Kind = "sync"
"""The executor that parks: the one that every worker has."""


class KeyQueue:
    """The deliveries of one key, in order; or a single delivery without a key."""

    __slots__ = ("address", "alone", "busy", "items", "limit", "listed")

    def __init__(self, address: Address | None) -> None:
        self.address = address
        self.items: deque[Delivery] = deque()
        self.busy = False
        self.listed = False
        self.limit: str | None = None
        """The limit that it waits for."""
        self.alone = False
        """Its last try met a lock that did not come free: it is tried by itself, so that nobody else waits."""


class Run:
    """The head of one key's queue, handed to a runner, which gives it back with `Lanes.release`."""

    __slots__ = ("charge", "deliveries", "queue")

    def __init__(self, queue: KeyQueue, deliveries: list[Delivery]) -> None:
        self.queue = queue
        self.deliveries = deliveries
        self.charge: Charge | None = None
        """On the first of those that were taken together, where lanes share the runners."""


class Lanes:
    """All queues of a worker."""

    def __init__(self, rules: Mapping[str, LaneRules] = MappingProxyType({}), throttle: Throttle | None = None) -> None:
        self._rules = rules
        self._throttle = throttle
        self._queues: dict[Address, KeyQueue] = {}
        self._kinds: dict[Kind, dict[str, Lane]] = {}
        self._pools: dict[Kind, Pool] = {}
        self._resting: list[tuple[float, int, KeyQueue]] = []
        self._serial = count()
        self._behind: dict[str, deque[KeyQueue]] = {}
        self._permitted: set[str] = set()
        self.limited: dict[str, list[int]] = {}
        """By lane: how many records and bytes wait behind limits."""

    def add(self, delivery: Delivery) -> None:
        """Queue a delivery behind the others of its key; without a key it waits for nobody."""
        self.extend((delivery,))

    def extend(self, deliveries: Iterable[Delivery]) -> None:
        """Queue deliveries, in order."""
        queues = self._queues
        kind = name = None
        lane: Lane | None = None
        for delivery in deliveries:
            address = delivery.address
            if address is None:
                queue = KeyQueue(None)
            else:
                found = queues.get(address)
                queue = found if found is not None else queues.setdefault(address, KeyQueue(address))
            queue.items.append(delivery)
            if lane is None or delivery.kind is not kind or delivery.lane is not name:
                kind, name = delivery.kind, delivery.lane
                lane = self._lane(delivery)
            lane.waiting += 1
            if queue.busy or queue.listed:
                continue
            if queue.limit is not None:
                self._count_limited((delivery,), 1)
            else:
                self._list(queue)

    def take(self, kind: Kind, limit: int, *, per_key: int | None = None) -> tuple[list[Run], list[Delivery]]:
        """`take_from` the lane whose turn it is."""
        lane = self.next((kind,))
        return ([], []) if lane is None else self.take_from(lane, limit, per_key=per_key)

    def next(self, kinds: Iterable[Kind], only: str | None = None) -> Lane | None:
        """The lane whose turn it is among those with keys that are ready, or `only` the one named.

        The kinds are those that the same runners serve; of a lane that has work of several the first is served.
        """
        lanes = [found for kind in kinds if (found := self._kinds.get(kind)) is not None]
        if only is not None:
            return next((lane for found in lanes if (lane := found.get(only)) is not None and lane.keys), None)
        return next_lane([lane for found in lanes for lane in found.values()])

    def take_from(self, lane: Lane, limit: int, *, per_key: int | None = None) -> tuple[list[Run], list[Delivery]]:
        """Hand out up to `limit` deliveries that may run now, and what was found to be of a revoked partition.

        A key's deliveries are handed out in order, as many as belong to one executor. With `per_key`, keys share the limit
        evenly and get no more than that each. A key that has to be alone comes alone.
        """
        kind = lane.kind
        runs: list[Run] = []
        dropped: list[Delivery] = []
        refused: dict[str, list[KeyQueue]] = {}
        turn = lane.turn
        even = limit // max(1, lane.keys)
        share = max(4, even) if per_key is None else max(1, min(per_key, even))
        quantum = max(1, limit // max(1, len(turn)))
        left = limit
        if self._throttle is not None:
            self._throttle.begin(kind)
        while turn and left > 0:
            tenant = turn[0]
            queue = tenant.queues[0]
            if queue.alone and runs:
                break
            most = 1 if queue.alone else min(left, share)
            several = len(turn) > 1
            if several:
                tenant.credit = min(tenant.credit, quantum) if tenant.credit > 0 else quantum
                most = min(most, tenant.credit)
            lane.pop(tenant)
            queue.listed = False
            taken = self._head(queue, kind, most, dropped, refused)
            if several:
                lane.spend(tenant, len(taken))
            if taken:
                queue.busy = True
                left -= len(taken)
                runs.append(Run(queue, taken))
                if queue.alone:
                    break
            elif queue.limit is not None:
                continue
            elif queue.items:
                self._list(queue)
            else:
                self._forget(queue)
        lane.waiting -= limit - left
        if refused or self._permitted:
            self._refuse(refused)
        return runs, dropped

    def _head(
        self, queue: KeyQueue, kind: Kind, limit: int, dropped: list[Delivery], refused: dict[str, list[KeyQueue]]
    ) -> list[Delivery]:
        taken: list[Delivery] = []
        items, throttle = queue.items, self._throttle
        while items and limit > 0:
            delivery = items[0]
            assignment = delivery.assignment
            if assignment is not None and not assignment.active:
                dropped.append(items.popleft())
                self._lane(delivery).waiting -= 1
                continue
            if delivery.kind != kind:
                break
            if throttle is not None and counts(delivery) and (name := throttle.admit(delivery)) is not None:
                if not taken:
                    queue.limit = name
                    refused.setdefault(name, []).append(queue)
                break
            taken.append(items.popleft())
            limit -= 1
        return taken

    def _refuse(self, refused: dict[str, list[KeyQueue]]) -> None:
        """Let what was refused wait, those first that had been let go; and ask more of a limit that refused nobody."""
        for name, queues in refused.items():
            behind = self._behind.setdefault(name, deque())
            if name in self._permitted:
                self._permitted.discard(name)
                behind.extendleft(reversed(queues))
            else:
                behind.extend(queues)
            for queue in queues:
                self._count_limited(queue.items, 1)
        if self._permitted:
            self.permitted(list(self._permitted))

    def throttled_by(self, throttle: Throttle) -> None:
        """Ask it from now on."""
        self._throttle = throttle

    def behind(self) -> dict[str, int]:
        """How many keys wait behind each limit."""
        return {name: len(queues) for name, queues in self._behind.items()}

    def permitted(self, names: Iterable[str]) -> bool:
        """The limits may have room: the keys that wait for them are asked again. True if there was one."""
        found = False
        for name in names:
            behind = self._behind.get(name)
            for _ in range(min(_PERMITTED, len(behind or ()))):
                self._let_go(behind.popleft())  # type: ignore[union-attr]
                found = True
            if behind:
                self._permitted.add(name)
            else:
                self._permitted.discard(name)
                self._behind.pop(name, None)
        return found

    def overflow(self, lane: str, records: int, size: int) -> bool:
        """Hand out to be parked what waits in the lane behind limits beyond so many records or bytes: the newest keys first.

        True if there was something.
        """
        found = False
        while (limited := self.limited.get(lane)) and (limited[0] > records or limited[1] > size):
            queue, reason = self._newest(lane)
            self._count_limited(queue.items, -1)
            queue.limit = None
            for delivery in queue.items:
                self._lane(delivery).waiting -= 1
                delivery.overflow, delivery.kind = reason, _PARKER
                self._lane(delivery).waiting += 1
            self._list(queue, first=True)
            found = True
        return found

    def _newest(self, lane: str) -> tuple[KeyQueue, str]:
        """The key that waits last in the longest list that has keys of the lane."""
        assert self._throttle is not None
        for name in sorted(self._behind, key=lambda each: -len(self._behind[each])):
            behind = self._behind[name]
            for back, queue in enumerate(reversed(behind), 1):
                if queue.items[0].lane == lane:
                    del behind[-back]
                    return queue, self._throttle.reason(name)
        raise AssertionError(lane)

    def _let_go(self, queue: KeyQueue) -> None:
        self._count_limited(queue.items, -1)
        queue.limit = None
        self._list(queue)

    def _count_limited(self, deliveries: Iterable[Delivery], sign: int) -> None:
        for delivery in deliveries:
            counted = self.limited.setdefault(delivery.lane, [0, 0])
            counted[0] += sign
            counted[1] += sign * delivery.size

    def release(self, run: Run, again: Sequence[Delivery] = (), *, at: float | None = None) -> None:
        """Give a key back. What is `again` to be run returns to the head of the queue, in order.

        With `at` the key rests until `wake` is called with that time or a later one.
        """
        queue = run.queue
        if again:
            queue.items.extendleft(reversed(again))
            for delivery in again:
                self._lane(delivery).waiting += 1
        if at is not None:
            heapq.heappush(self._resting, (at, next(self._serial), queue))
            return
        queue.busy = False
        if queue.items:
            self._list(queue)
        else:
            self._forget(queue)

    def left(self, runs: Iterable[Run]) -> None:
        """Tell the throttle that these runs are over."""
        if self._throttle is not None:
            over = [delivery for run in runs for delivery in run.deliveries if counts(delivery)]
            if over:
                self._throttle.leave(over)

    def wake(self, now: float) -> bool:
        """Let keys run whose rest is over. True if there was one."""
        woken = False
        while self._resting and self._resting[0][0] <= now:
            queue = heapq.heappop(self._resting)[2]
            queue.busy = False
            woken = True
            if queue.items:
                self._list(queue)
            else:
                self._forget(queue)
        return woken

    def next_wake(self) -> float | None:
        """When the first resting key may run."""
        return self._resting[0][0] if self._resting else None

    def drop_revoked(self) -> list[Delivery]:
        """Take out what waits from partitions that are no longer ours; busy keys stay busy."""
        dropped: list[Delivery] = []
        ready = self._unlist()  # the head that is left may be another executor's
        behind = [queue for queues in self._behind.values() for queue in queues]
        queues = {id(queue): queue for queue in (*ready, *behind, *self._queues.values())}
        queues.update((id(queue), queue) for _, _, queue in self._resting)
        for queue in queues.values():
            gone = [d for d in queue.items if d.assignment is not None and not d.assignment.active]
            if not gone:
                continue
            if queue.limit is not None:
                self._count_limited(queue.items, -1)
                queue.limit = None
                ready.append(queue)
            for delivery in gone:
                self._lane(delivery).waiting -= 1
            queue.items = deque(d for d in queue.items if d.assignment is None or d.assignment.active)
            dropped += gone
        self._behind = {n: kept for n, b in self._behind.items() if (kept := deque(q for q in b if q.limit == n))}
        for queue in ready:
            if queue.items:
                self._list(queue)
            else:
                self._forget(queue)
        return dropped

    def _unlist(self) -> list[KeyQueue]:
        """Take all keys off the lists of those that are ready."""
        found = []
        for lanes in self._kinds.values():
            for lane in lanes.values():
                found += lane.clear()
        for queue in found:
            queue.listed = False
        return found

    def heads(self) -> Iterator[Delivery]:
        """The first waiting delivery of each key."""
        for queue in self._queues.values():
            if queue.items:
                yield queue.items[0]

    def ready(self, kind: Kind) -> int:
        """How many keys could run now."""
        return sum(lane.keys for lane in self._kinds.get(kind, {}).values())

    def has(self, name: str) -> bool:
        """Whether a key of this lane could run now."""
        return any(name in lanes and lanes[name].keys for lanes in self._kinds.values())

    def waiting(self, kind: Kind) -> int:
        """Queued deliveries of an executor, those of busy keys included."""
        return sum(lane.waiting for lane in self._kinds.get(kind, {}).values())

    def __len__(self) -> int:
        return sum(map(self.waiting, self._kinds))

    @property
    def keys(self) -> int:
        """How many keys have something queued or running."""
        return len(self._queues)

    def _lane(self, delivery: Delivery) -> Lane:
        kind, name = delivery.kind, delivery.lane
        lanes = self._kinds.get(kind)
        if lanes is None:
            lanes = self._kinds[kind] = {}
        lane = lanes.get(name)
        if lane is None:
            rules = self._rules.get(name)
            pool = self._pools.setdefault(pool_of(delivery), Pool())
            lane = lanes[name] = Lane(name, kind, pool, rules.weight if rules is not None else 1)
        return lane

    def _list(self, queue: KeyQueue, *, first: bool = False) -> None:
        queue.listed = True
        head = queue.items[0]
        envelope = head.envelope
        self._lane(head).put(queue, None if envelope is None else envelope.tenant, first=first)

    def _forget(self, queue: KeyQueue) -> None:
        if queue.address is not None and self._queues.get(queue.address) is queue:
            del self._queues[queue.address]


def counts(delivery: Delivery) -> bool:
    """Whether it is to be called, so that limits apply; not what is unreadable, unknown, early or only to be parked."""
    return delivery.handler is not None and delivery.overflow is None and not delivery.early


def pool_of(delivery: Delivery) -> Kind:
    """What stands for all executors that have their runners in common: batches run where single commands do."""
    handler = delivery.handler
    if handler is None or handler.mode == "external" or delivery.kind == _PARKER:
        return delivery.kind
    if handler.executor is not None:
        return handler.executor
    return "async" if handler.is_async else "sync"
