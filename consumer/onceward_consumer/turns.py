"""Whose turn it is: lanes by weight, the tenants of a lane in turn, the keys of a tenant as they became ready. Pure.

Lanes share an executor's runners in proportion to their weights (stride scheduling: each has a clock that runs the slower the
heavier the lane is, and the one that is behind is next). A lane without work gives up its share and is owed nothing for it.
Tenants get a quantum of commands each (deficit round robin, design D7); a command without a tenant belongs to one of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from onceward_consumer.deliveries import Kind
from onceward_schemas.errors import SettingsError

if TYPE_CHECKING:
    from onceward_consumer.lanes import KeyQueue

_FIRST_GUESS_SECONDS: Final = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRules:
    """What `App.lane` was told of a lane."""

    weight: int = 1
    """Its share of the runners when several lanes have work."""
    reserved: int = 0
    """How many runners of each executor take nothing else."""


def kept_runners(
    rules: Mapping[str, LaneRules], lanes: Collection[str], runners: int, option: str
) -> tuple[str | None, ...]:
    """For each runner of an executor that serves these lanes, the lane that it is kept for, if any.

    >>> kept_runners({"mail": LaneRules(reserved=1)}, {"mail", "reports"}, 3, "--threads")
    ('mail', None, None)

    Raises: SettingsError when no runner is left for the other lanes.
    """
    kept = [name for name in sorted(lanes) if name in rules for _ in range(rules[name].reserved)]
    if not kept or len(lanes) == 1:
        return (None,) * runners
    if len(kept) >= runners:
        raise SettingsError(
            f"The lanes reserve {len(kept)} runners, and {option} is {runners}: none is left for the other lanes.",
            remedy=f"Pass {option} {len(kept) + 1} or more, or reserve fewer.",
        )
    return (*kept, *[None] * (runners - len(kept)))


class Tenant:
    """The ready keys of one tenant in one lane."""

    __slots__ = ("credit", "name", "queues")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.queues: deque[KeyQueue] = deque()
        self.credit = 0
        """How many commands it may still have before it is the next one's turn."""


class Clock:
    """A lane's time on one kind of runners, threads or tasks: runner seconds that it had, divided by its weight."""

    __slots__ = ("at", "weight")

    def __init__(self, weight: int) -> None:
        self.at = 0.0
        self.weight = weight


class Pool:
    """The clocks of all lanes on one kind of runners."""

    __slots__ = ("clocks", "now")

    def __init__(self) -> None:
        self.clocks: dict[str, Clock] = {}
        self.now = 0.0
        """Where the clock stood of the lane that was next last."""

    def clock(self, lane: str, weight: int) -> Clock:
        """The lane's clock, made when it is first asked for."""
        found = self.clocks.get(lane)
        if found is None:
            found = self.clocks[lane] = Clock(weight)
        return found


class Lane:
    """What is queued in one lane for one executor."""

    __slots__ = ("_plain", "_tenants", "clock", "each", "keys", "kind", "name", "pool", "turn", "waiting")

    def __init__(self, name: str, kind: Kind, pool: Pool, weight: int) -> None:
        self.name = name
        self.kind = kind
        self.pool = pool
        self.clock = pool.clock(name, weight)
        self.each = _FIRST_GUESS_SECONDS
        """How many runner seconds a command takes, learnt."""
        self.waiting = 0
        """Queued deliveries, those of busy keys included."""
        self.keys = 0
        """How many keys are ready."""
        self.turn: deque[Tenant] = deque()
        """Tenants with ready keys; the first is next."""
        self._plain = Tenant(None)
        self._tenants: dict[str | None, Tenant] = {None: self._plain}

    def put(self, queue: KeyQueue, tenant: str | None, *, first: bool = False) -> None:
        """A key is ready; `first` lets it pass the other keys of its tenant.

        A lane that had none begins at the clock of those that had: it gets its share from now on, and not of what was.
        """
        if not self.keys and self.clock.at < self.pool.now:
            self.clock.at = self.pool.now
        found = self._plain if tenant is None else self._tenants.get(tenant)
        if found is None:
            found = self._tenants[tenant] = Tenant(tenant)
        if not found.queues:
            self.turn.append(found)
        if first:
            found.queues.appendleft(queue)
        else:
            found.queues.append(queue)
        self.keys += 1

    def pop(self, tenant: Tenant) -> KeyQueue:
        """Take the first key of the tenant whose turn it is."""
        queue = tenant.queues.popleft()
        self.keys -= 1
        if not tenant.queues:
            self.turn.popleft()
            tenant.credit = 0
            if tenant.name is not None:
                del self._tenants[tenant.name]
        return queue

    def spend(self, tenant: Tenant, count: int) -> None:
        """Its turn gave it `count` commands; when it has had its quantum, the next one's begins."""
        tenant.credit -= count
        if tenant.credit <= 0 and tenant.queues:
            self.turn.rotate(-1)

    def clear(self) -> list[KeyQueue]:
        """Take out all ready keys, in their order."""
        found = [queue for tenant in self.turn for queue in tenant.queues]
        self.turn.clear()
        self.keys = 0
        self._plain = Tenant(None)
        self._tenants = {None: self._plain}
        return found

    def learn(self, count: int, seconds: float) -> None:
        """A runner needed so long for so many commands."""
        self.each += (max(seconds / count, 1e-6) - self.each) * min(1.0, count / 50)


def next_lane(lanes: Iterable[Lane]) -> Lane | None:
    """The lane whose turn it is among those of one pool that have ready keys; the first of equals."""
    best: Lane | None = None
    for lane in lanes:
        if lane.keys and (best is None or lane.clock.at < best.clock.at):
            best = lane
    if best is not None and best.clock.at > best.pool.now:
        best.pool.now = best.clock.at
    return best


class Charge:
    """What a lane was charged for a group when it was taken, to be put right when it ends."""

    __slots__ = ("_charged", "_count", "_lane", "_since")

    def __init__(self, lane: Lane, count: int, now: float, *, free: bool) -> None:
        """`free` for runners that are the lane's own."""
        self._lane = lane
        self._count = count
        self._since = now
        self._charged: float | None = None if free else count * lane.each
        if self._charged is not None:
            lane.clock.at += self._charged / lane.clock.weight

    def settle(self, now: float) -> None:
        """The group has ended."""
        seconds = now - self._since
        self._lane.learn(self._count, seconds)
        if self._charged is not None:
            self._lane.clock.at += (seconds - self._charged) / self._lane.clock.weight
