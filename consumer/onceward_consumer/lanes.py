"""Which command is next: a queue for each key, one runner per key always, keys in parallel. Pure; one thread at a time.

A key stays busy until its runner says so, whatever happens to partitions meanwhile: a partition that is revoked and comes
back adds to the queue of a key whose old runner still runs, and waits for it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from itertools import count

from onceward_consumer.deliveries import Address, Delivery, Kind


class KeyQueue:
    """The deliveries of one key, in order; or a single delivery without a key."""

    __slots__ = ("address", "alone", "busy", "items", "listed")

    def __init__(self, address: Address | None) -> None:
        self.address = address
        self.items: deque[Delivery] = deque()
        self.busy = False
        self.listed = False
        self.alone = False
        """Its last try met a lock that did not come free: it is tried by itself, so that nobody else waits."""


class Run:
    """The head of one key's queue, handed to a runner, which gives it back with `Lanes.release`."""

    __slots__ = ("deliveries", "queue")

    def __init__(self, queue: KeyQueue, deliveries: list[Delivery]) -> None:
        self.queue = queue
        self.deliveries = deliveries


class Lanes:
    """All queues of a worker."""

    def __init__(self) -> None:
        self._queues: dict[Address, KeyQueue] = {}
        self._ready: defaultdict[Kind, deque[KeyQueue]] = defaultdict(deque)
        self._resting: list[tuple[float, int, KeyQueue]] = []
        self._serial = count()
        self.waiting: defaultdict[Kind, int] = defaultdict(int)
        """Queued deliveries by executor, those of busy keys included."""

    def add(self, delivery: Delivery) -> None:
        """Queue a delivery behind the others of its key; without a key it waits for nobody."""
        address = delivery.address
        if address is None:
            queue = KeyQueue(None)
        else:
            found = self._queues.get(address)
            queue = found if found is not None else self._queues.setdefault(address, KeyQueue(address))
        queue.items.append(delivery)
        self.waiting[delivery.kind] += 1
        if not (queue.busy or queue.listed):
            self._list(queue)

    def take(self, kind: Kind, limit: int, *, per_key: int | None = None) -> tuple[list[Run], list[Delivery]]:
        """Hand out up to `limit` deliveries that may run now, and what was found to be of a revoked partition.

        A key's deliveries are handed out in order, as many as belong to one executor. With `per_key`, keys share the
        limit evenly and get no more than that each. A key that has to be alone comes alone.
        """
        ready = self._ready[kind]
        runs: list[Run] = []
        dropped: list[Delivery] = []
        even = limit // max(1, len(ready))
        share = max(4, even) if per_key is None else max(1, min(per_key, even))
        left = limit
        while ready and left > 0:
            queue = ready[0]
            if queue.alone and runs:
                break
            ready.popleft()
            queue.listed = False
            taken = self._head(queue, kind, 1 if queue.alone else min(share, left), dropped)
            if taken:
                queue.busy = True
                left -= len(taken)
                runs.append(Run(queue, taken))
                if queue.alone:
                    break
            elif queue.items:
                self._list(queue)
            else:
                self._forget(queue)
        return runs, dropped

    def _head(self, queue: KeyQueue, kind: Kind, limit: int, dropped: list[Delivery]) -> list[Delivery]:
        taken: list[Delivery] = []
        items = queue.items
        while items and len(taken) < limit:
            delivery = items[0]
            if delivery.assignment is not None and not delivery.assignment.active:
                dropped.append(items.popleft())
                self.waiting[delivery.kind] -= 1
                continue
            if delivery.kind != kind:
                break
            taken.append(items.popleft())
            self.waiting[kind] -= 1
        return taken

    def release(self, run: Run, again: Iterable[Delivery] = (), *, at: float | None = None) -> None:
        """Give a key back. What is `again` to be run returns to the head of the queue, in order.

        With `at` the key rests until `wake` is called with that time or a later one.
        """
        queue = run.queue
        for delivery in reversed(list(again)):
            queue.items.appendleft(delivery)
            self.waiting[delivery.kind] += 1
        if at is not None:
            heapq.heappush(self._resting, (at, next(self._serial), queue))
            return
        queue.busy = False
        if queue.items:
            self._list(queue)
        else:
            self._forget(queue)

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
        queues = {id(queue): queue for ready in self._ready.values() for queue in ready}
        queues.update((id(queue), queue) for queue in self._queues.values())
        queues.update((id(queue), queue) for _, _, queue in self._resting)
        for queue in queues.values():
            keep: deque[Delivery] = deque()
            for delivery in queue.items:
                if delivery.assignment is None or delivery.assignment.active:
                    keep.append(delivery)
                else:
                    dropped.append(delivery)
                    self.waiting[delivery.kind] -= 1
            queue.items = keep
            if not keep and not queue.busy and not queue.listed:
                self._forget(queue)
        return dropped

    def heads(self) -> Iterator[Delivery]:
        """The first waiting delivery of each key."""
        for queue in self._queues.values():
            if queue.items:
                yield queue.items[0]

    def ready(self, kind: Kind) -> int:
        """How many keys could run now."""
        return len(self._ready[kind])

    def __len__(self) -> int:
        return sum(self.waiting.values())

    @property
    def keys(self) -> int:
        """How many keys have something queued or running."""
        return len(self._queues)

    def _list(self, queue: KeyQueue) -> None:
        queue.listed = True
        self._ready[queue.items[0].kind].append(queue)

    def _forget(self, queue: KeyQueue) -> None:
        if queue.address is not None and self._queues.get(queue.address) is queue:
            del self._queues[queue.address]
