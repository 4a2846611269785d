"""The limits of one worker, in memory: who may begin now, and what is to be told to the other workers (design D7).

A `Throttle`. It knows only what the keeper has leased from PostgreSQL; where a lease has run out it lets nobody begin.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from onceward_consumer.breakers import Circuit, Phase, asked_seconds
from onceward_consumer.deliveries import Delivery, Kind
from onceward_consumer.failures import Permanent, Transient, Verdict, classify
from onceward_consumer.handlers import Handler
from onceward_consumer.limits import Rules
from onceward_consumer.outcomes import Dead, Failed, Outcome
from onceward_consumer.pools import Answer, Ask, Block, Pool
from onceward_consumer.throttles import Overflow
from onceward_schemas import headers

if TYPE_CHECKING:
    from onceward_consumer.items import Item

_MANY: Final = 1_000_000
_FORGET_SECONDS: Final = 60.0


@dataclass(slots=True, eq=False)
class _Grant:
    """What the deliveries of one run hold together: one permit of each limit."""

    pools: set[Pool] = field(default_factory=set)
    by_delivery: dict[int, tuple[Pool, ...]] = field(default_factory=dict)
    tokens: dict[int, list[tuple[Pool, Block]]] = field(default_factory=dict)


class Seen(NamedTuple):
    """A limit as this worker sees it, for metrics."""

    scope: str
    in_use: int
    waiting: int
    refused: int
    reason: Overflow
    phase: Phase | None


class Limiter:
    """Thread-safe: the buffer calls it under its lock, others without."""

    def __init__(self, worker: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._worker = worker
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._rules = Rules({})
        self._pools: dict[str, Pool] = {}
        self._by_handler: dict[tuple[str, str], tuple[Pool, ...]] = {}
        self._tenants = False
        self._grant = _Grant()
        self._taken: dict[int, _Grant] = {}
        self._freed: set[str] = set()
        self._offset = time.time() - monotonic()
        self._told_need = self._told_free = False
        self.need: Callable[[], None] = lambda: None
        """Called when there is something to tell or to ask; wakes the keeper."""
        self.active = False
        """Whether any limit holds: else nobody needs to ask."""

    def configure(self, rules: Rules) -> list[str]:
        """Take these limits from now on; returns the names of those whose keys are to be asked about again."""
        with self._lock:
            if rules == self._rules:
                return []
            self._rules = rules
            for name, limit in rules.by_scope.items():
                if "*" not in name:
                    self._pools.setdefault(name, Pool(name, limit))
            for name, pool in self._pools.items():
                pool.limit = rules.of(name)
            self._by_handler = {}
            self._tenants = rules.about_tenants
            self.active = bool(rules.by_scope)
            return [pool.scope for pool in self._pools.values() if self._free(pool)]

    def begin(self, kind: Kind) -> None:
        """See `Throttle`."""
        self._grant = _Grant()

    def admit(self, delivery: Delivery) -> str | None:
        """See `Throttle`."""
        handler = delivery.handler
        if handler is None or not self.active:
            return None
        with self._lock:
            if handler.mode == "external":
                self._grant = _Grant()
            return self._admit(delivery, self._grant)

    def admit_all(self, deliveries: Sequence[Delivery]) -> list[bool]:
        """For parked followers, which one runner takes: whether each may run; behind one that may not, none of its key.

        `leave` follows for those that may.
        """
        if not self.active:
            return [True] * len(deliveries)
        result, refused = [], set()
        grant = _Grant()
        with self._lock:
            for delivery in deliveries:
                if delivery.handler is not None and delivery.handler.mode == "external":
                    grant = _Grant()
                blocked = delivery.address in refused
                passed = not blocked and (delivery.handler is None or self._admit(delivery, grant, ask=False) is None)
                if not passed:
                    refused.add(delivery.address)
                result.append(passed)
        return result

    def _admit(self, delivery: Delivery, grant: _Grant, *, ask: bool = True) -> str | None:
        """`ask` says that its key waits in memory when it is refused; else it is a parked follower."""
        pools = self._pools_of(delivery)
        if not pools:
            return None
        now = self._monotonic()
        database_now = now + self._offset
        for pool in pools:
            if not pool.passes(now, database_now, held=pool in grant.pools):
                pool.refused += 1
                if ask:
                    pool.waiting += 1
                else:
                    pool.parked += 1
                self._hurry()
                return pool.scope
        key = id(delivery)
        for pool in pools:
            token = pool.take(now, database_now, key, held=pool in grant.pools)
            if token is not None:
                grant.tokens.setdefault(key, []).append((pool, token))
        grant.pools.update(pools)
        grant.by_delivery[key] = pools
        self._taken[key] = grant
        return None

    def leave(self, deliveries: Sequence[Delivery]) -> None:
        """See `Throttle`."""
        if not self._taken:
            return
        with self._lock:
            for delivery in deliveries:
                key = id(delivery)
                grant = self._taken.pop(key, None)
                if grant is None:
                    continue
                pools = grant.by_delivery.pop(key)
                grant.tokens.pop(key, None)
                last = not grant.by_delivery
                for pool in pools:
                    pool.leave(key, last=False)
                if last:
                    for pool in grant.pools:
                        pool.leave(0, last=True)
                        if pool.demand:
                            self._freed.add(pool.scope)
                    if self._freed:
                        self._tell_free()

    def concerns(self, handler: Handler) -> bool:
        """Whether more than a breaker may stand between its commands and a runner."""
        if not self.active:
            return False
        names = (f"lane:{handler.lane}", f"type:{handler.type}", f"destination:{handler.destination}")
        found = [self._rules.of(name) for name in names]
        return self._tenants or any(limit.counted or limit.paused for limit in found)

    def over(self, items: Sequence[Item]) -> None:
        """Parked commands that `admit_all` had let through are over."""
        self.unused(items)
        self.leave([item.delivery for item in items])

    def unused(self, items: Iterable[Item]) -> None:
        """Of these, which have not left yet, some were not called: the next in line may have their tokens."""
        if not self._taken:
            return
        with self._lock:
            now = self._monotonic()
            for item in items:
                key = id(item.delivery)
                grant = None if item.started else self._taken.get(key)
                for pool, token in grant.tokens.pop(key, ()) if grant is not None else ():
                    pool.give_back(token, now)
                    if pool.demand:
                        self._freed.add(pool.scope)

    def _pools_of(self, delivery: Delivery) -> tuple[Pool, ...]:
        handler = delivery.handler
        assert handler is not None
        key = (delivery.lane, handler.type)
        pools = self._by_handler.get(key)
        if pools is None:
            names = [f"lane:{delivery.lane}", f"type:{handler.type}"]
            if handler.destination is not None:
                names.append(f"destination:{handler.destination}")
            pools = tuple(self._pools[name] for name in names if not self._rules.of(name).idle)
            self._by_handler[key] = pools
        if self._tenants and delivery.envelope is not None and delivery.envelope.tenant is not None:
            name = f"tenant:{delivery.envelope.tenant}"
            limit = self._rules.of(name)
            if not limit.idle:
                found = self._pools.get(name)
                if found is None:
                    found = self._pools[name] = Pool(name, limit)
                pools = (*pools, found)
        return pools

    def may_call(self, delivery: Delivery) -> bool:
        """Right before an external call, which was admitted some time ago: whether what it was given still holds."""
        if not self.active or delivery.handler is None:
            return True
        with self._lock:
            now = self._monotonic()
            grant = self._taken.get(id(delivery))
            if grant is not None:
                if any(now >= token.until for _, token in grant.tokens.get(id(delivery), ())):
                    return False
                if any(pool.limit.concurrency is not None and now >= pool.valid_until for pool in grant.pools):
                    return False
            if delivery.handler.destination is None:
                return True
            pool = self._pools.get(f"destination:{delivery.handler.destination}")
            if pool is None or pool.limit.breaker is None or pool.meets_probe(id(delivery)):
                return True
            return pool.closed(now + self._offset)

    def called(self, delivery: Delivery, handler: Handler, ended: BaseException | Outcome | None) -> None:
        """An external call has ended: with what it raised, or with its outcome."""
        if not self.active or handler.destination is None:
            return
        error = ended if isinstance(ended, BaseException) else None
        verdict = _verdict(ended, handler)
        with self._lock:
            pool = self._pools.get(f"destination:{handler.destination}")
            if pool is None or pool.limit.breaker is None:
                return
            probe = pool.meets_probe(id(delivery))
            if verdict is None or _answered(verdict):
                pool.tally.success()
                pool.tally.probe = "good" if probe else pool.tally.probe
            elif pool.limit.breaker.speaks_against(error, verdict) or (probe and isinstance(verdict, Transient)):
                reason = verdict.reason
                pool.tally.failure(reason, asked_seconds(verdict))
                pool.tally.probe = "bad" if probe else pool.tally.probe
                self._hurry()
            if probe:
                self._hurry()

    def reason(self, name: str) -> Overflow:
        """See `Throttle`."""
        pool = self._pools.get(name)
        return "throttled" if pool is None else pool.reason

    def room(self, name: str) -> int:
        """See `Throttle`."""
        with self._lock:
            pool = self._pools.get(name)
            if pool is None or pool.limit.idle:
                return _MANY
            now = self._monotonic()
            return pool.room(now, now + self._offset)

    def names(self, delivery: Delivery) -> list[str]:
        """The limits that a delivery meets."""
        if not self.active or delivery.handler is None:
            return []
        with self._lock:
            return [pool.scope for pool in self._pools_of(delivery)]

    def asks(self) -> list[Ask]:
        """All that there is to tell and to ask; `answers` or `failed` follows."""
        with self._lock:
            self._told_need = False
            now = self._monotonic()
            found = [pool.ask(now, now + self._offset) for pool in self._pools.values()]
            return [ask for ask in found if ask is not None]

    def answers(self, answers: Iterable[Answer], asked: float, database_now: float, left_seconds: float) -> None:
        """Note what was decided for questions asked at `asked`; `left_seconds` is what is left of the worker's lease."""
        with self._lock:
            self._offset = database_now - asked
            for answer in answers:
                pool = self._pools[answer.scope]
                pool.answer(answer, self._worker, asked, database_now, left_seconds)
                self._free(pool)

    def told(self, shares: Iterable[tuple[str, int, int]]) -> None:
        """What the table has of this worker now: scope, permits, wanted."""
        with self._lock:
            for scope, permits, wanted in shares:
                self._pools[scope].told = (permits, wanted)

    def share(self, scope: str) -> tuple[int, int]:
        """What the table has of this worker, as far as it knows."""
        return self._pools[scope].told

    def failed(self, asks: Iterable[Ask]) -> None:
        """The database did not answer."""
        with self._lock:
            for ask in asks:
                self._pools[ask.scope].failed(ask)

    def see(self, circuits: Iterable[tuple[str, Circuit]]) -> None:
        """Breakers as others have left them."""
        with self._lock:
            for scope, circuit in circuits:
                pool = self._pools.get(scope)
                if pool is not None and pool.limit.breaker is not None:
                    pool.see(circuit, self._worker)
                    self._free(pool)

    def freed(self) -> tuple[set[str], bool]:
        """Limits whose waiting keys are to be asked about again; and whether parked followers are, too."""
        with self._lock:
            self._told_free = False
            found, self._freed = self._freed, set()
            parked = False
            for scope in found:
                if (pool := self._pools.get(scope)) is not None and pool.parked:
                    pool.parked, parked = 0, True
            return found, parked

    def waits(self, keys: Mapping[str, int]) -> None:
        """How many keys wait behind each limit; where nothing is said, none."""
        with self._lock:
            for scope, pool in self._pools.items():
                pool.waiting = keys.get(scope, 0)
                self._free(pool)

    def _free(self, pool: Pool) -> bool:
        now = self._monotonic()
        if not pool.demand or not (pool.limit.idle or pool.passes(now, now + self._offset, held=False)):
            return False
        self._freed.add(pool.scope)
        return True

    def _hurry(self) -> None:
        if not self._told_need:
            self._told_need = True
            self.need()

    def _tell_free(self) -> None:
        if not self._told_free:
            self._told_free = True
            self.need()

    def tick(self, seconds: float) -> None:
        """Note that so much time has passed: how fast calls end; and forget tenants that have gone quiet."""
        with self._lock:
            now = self._monotonic()
            for pool in list(self._pools.values()):
                pool.pace = 0.7 * pool.pace + 0.3 * pool.ended / max(0.05, seconds)
                pool.ended = 0
                quiet = not (pool.in_use or pool.waiting or pool.permits or pool.refused) and pool.told == (0, 0)
                named = pool.scope in self._rules.by_scope or not pool.scope.startswith("tenant:")
                if quiet and not named and now - pool.touched > _FORGET_SECONDS:
                    del self._pools[pool.scope]

    def look(self, *, count: bool = True) -> list[Seen]:
        """Each limit as it is now; refusals are those since the last look that counted."""
        with self._lock:
            result = []
            for pool in self._pools.values():
                phase = pool.circuit.phase if pool.limit.breaker is not None else None
                result.append(Seen(pool.scope, pool.in_use, pool.waiting, pool.refused, pool.reason, phase))
                if count:
                    pool.refused = 0
            return result

    def rests(self) -> float:
        """In how many seconds something may have changed without anybody asking."""
        with self._lock:
            now = self._monotonic()
            found = 1.0
            for pool in self._pools.values():
                if pool.limit.idle:
                    continue
                if pool.limit.rate is not None and (pool.demand or pool.blocks or pool.used):
                    found = min(found, max(0.1, pool.more_at - now))
                elif pool.demand or pool.permits > pool.in_use or pool.used:
                    found = min(found, 0.1)
                elif pool.in_use or not pool.tally.empty:
                    found = min(found, 0.25)
            return found


def stand_in(handler: Handler) -> Delivery:
    """Somebody to ask for in place of a command of the handler that is not known yet; of no tenant."""
    return Delivery(
        topic=handler.lane,
        partition=0,
        offset=0,
        timestamp_ms=0,
        key=None,
        payload=None,
        headers=[(headers.ID, str(UUID(int=0)).encode()), (headers.TYPE, handler.type.encode())],
        lane=handler.lane,
        assignment=None,
        handlers={handler.type: handler},
    )


def _verdict(ended: BaseException | Outcome | None, handler: Handler) -> Verdict | None:
    match ended:
        case BaseException():
            return classify(ended, handler.rules)
        case Failed():
            return Transient(ended.reason)
        case Dead():
            return Permanent(ended.reason)
    return None


def _answered(verdict: object) -> bool:
    """Whether the destination answered, and it is the command that it does not like."""
    if not isinstance(verdict, Permanent):
        return False
    return verdict.reason.startswith("http_4")
