"""What one worker may do under one limit: permits and tokens that it has leased, and what it knows of the breaker. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from onceward_consumer.breakers import Breaker, Circuit, Tally, after, probing
from onceward_consumer.limits import LIFE_SECONDS, Limit
from onceward_consumer.throttles import Overflow

_KEEP_SECONDS: Final = 0.25
"""What was leased for those who wait is kept for so long; tokens go back after that."""
_NO_LIMIT: Final = 1_000_000
_ROOM_SECONDS: Final = 2.0


@dataclass(slots=True)
class Block:
    """Tokens taken together. `until` is on the monotonic clock, `taken_at` on the database's."""

    tokens: int
    until: float
    taken_at: float


class Ask(NamedTuple):
    """What a worker tells and wants to know of one limit."""

    scope: str
    limit: Limit
    in_use: int
    wanted: int
    """Permits that it could use."""
    tokens: int
    back: tuple[tuple[int, float], ...]
    tally: Tally | None
    probe: bool
    """It has something to probe with, or is at it."""


class Answer(NamedTuple):
    """What is decided."""

    scope: str
    permits: int
    tokens: int
    more_seconds: float
    """When there may be tokens again."""
    circuit: Circuit
    others: int
    """Permits that other workers could use beyond those that they do."""


@dataclass(slots=True, eq=False)
class Pool:
    """Of one limit. All instants are monotonic, unless they say otherwise."""

    scope: str
    limit: Limit
    permits: int = 0
    valid_until: float = 0.0
    """Permits count until then: the worker's lease may be over after it."""
    in_use: int = 0
    peak: int = 0
    """The most in use since it was last told."""
    waiting: int = 0
    """Keys that were refused and have not been asked about again."""
    parked: int = 0
    """Parked followers that were refused since their runners were last told to look."""
    refused: int = 0
    """How often it refused, for the metric."""
    others: int = 0
    blocks: deque[Block] = field(default_factory=deque)
    used: int = 0
    """Tokens used since it was last told."""
    more_at: float = 0.0
    """When there may be tokens again."""
    ended: int = 0
    """Calls that ended since it was last told."""
    pace: float = 0.0
    """Calls that end in a second, about."""
    circuit: Circuit = field(default_factory=Circuit)
    known: bool = False
    """Whether the state of the breaker has been read."""
    tally: Tally = field(default_factory=Tally)
    probe: int | None = None
    """The delivery that probes."""
    may_probe: bool = False
    told: tuple[int, int] = (0, 0)
    kept_until: float = 0.0
    """What was granted is kept until then: keys that wait for it have been told, and their runners may be busy."""
    touched: float = 0.0

    @property
    def demand(self) -> int:
        """How many could begin if it let them."""
        return self.waiting + self.parked

    def passes(self, now: float, database_now: float, *, held: bool) -> bool:
        """Whether one more may begin; `held` says that its group has a permit already."""
        limit = self.limit
        if limit.paused:
            return False
        if limit.concurrency is not None and not held and not self._free(limit.concurrency, now):
            return False
        if limit.rate is not None and not self.on_hand(now):
            return False
        return limit.breaker is None or self._closed(limit.breaker, database_now) or self.may_probe

    def _free(self, most: int, now: float) -> bool:
        return now < self.valid_until and self.in_use < min(self.permits, most)

    def take(self, now: float, database_now: float, delivery: int, *, held: bool) -> Block | None:
        """Count one that `passes`; returns the token, where it took one."""
        token: Block | None = None
        if not held:
            self.in_use += 1
            self.peak = max(self.peak, self.in_use)
        if self.limit.rate is not None:
            block = self.blocks[0]
            block.tokens -= 1
            self.used += 1
            if not block.tokens:
                self.blocks.popleft()
            token = Block(1, block.until, block.taken_at)
        breaker = self.limit.breaker
        if breaker is not None and self.may_probe and not self._closed(breaker, database_now):
            self.may_probe, self.probe = False, delivery
        self.touched = now
        return token

    def give_back(self, token: Block, now: float) -> None:
        """A token with which nothing was called; another may use it as long as it holds."""
        if now < token.until:
            self.blocks.appendleft(token)
            self.used -= 1

    def leave(self, delivery: int, *, last: bool) -> None:
        """One is over; with `last` its permit comes back. A probe that was not made may be made with another."""
        if last:
            self.in_use -= 1
            self.ended += 1
        if self.probe == delivery:
            self.probe = None
            self.may_probe = not self.tally.probe

    def on_hand(self, now: float) -> int:
        """Tokens that may be used now."""
        while self.blocks and self.blocks[0].until <= now:
            self.blocks.popleft()
        return sum(block.tokens for block in self.blocks)

    def closed(self, database_now: float) -> bool:
        """Whether its breaker lets calls pass, by what this worker knows and has seen itself."""
        return self.limit.breaker is None or self._closed(self.limit.breaker, database_now)

    def _closed(self, breaker: Breaker, database_now: float) -> bool:
        if not self.known or self.circuit.phase != "closed":
            return False
        return not self.tally.failed or after(self.circuit, self.tally, breaker, database_now).phase == "closed"

    @property
    def reason(self) -> Overflow:
        """Why it refuses."""
        if self.limit.paused:
            return "paused"
        if self.limit.breaker is not None and self.circuit.phase != "closed":
            return "breaker_open"
        return "over_quota" if self.scope.startswith("tenant:") else "throttled"

    def room(self, now: float, database_now: float) -> int:
        """How many parked commands it can take in the next seconds, over all workers."""
        limit, found = self.limit, _NO_LIMIT
        if limit.paused or limit.concurrency == 0:
            return 0
        if limit.breaker is not None and not self.closed(database_now):
            rested = self.circuit.phase != "closed" and database_now >= self.circuit.until
            return 1 if rested and not self.demand and self.probe is None else 0
        waiting = self.waiting + self.others
        if limit.concurrency is not None:
            found = min(found, round(limit.concurrency * 2 + self.pace * _ROOM_SECONDS) - waiting)
        if limit.rate is not None:
            found = min(found, max(1, round(limit.rate.per_second * _ROOM_SECONDS)) - waiting)
        return max(0, found)

    def ask(self, now: float, database_now: float) -> Ask | None:
        """What there is to say, which is forgotten here: `answer` or `failed` follows. None: nothing."""
        limit = self.limit
        offered = self.permits if now < self.kept_until else 0
        wanted = 0 if limit.paused else max(self.in_use, self.peak, offered) + self.demand
        if limit.concurrency is not None:
            wanted = min(wanted, limit.concurrency)
        counted = limit.counted
        back: list[tuple[int, float]] = []
        on_hand = self.on_hand(now)
        while self.blocks and not self.demand and self.blocks[0].until - LIFE_SECONDS + _KEEP_SECONDS <= now:
            block = self.blocks.popleft()
            back.append((block.tokens, block.taken_at))
            on_hand -= block.tokens
        tokens = 0
        if limit.rate is not None and not limit.paused and self._allows(now, database_now):
            tokens = max(0, min(limit.rate.block, self.demand + self.used - on_hand))
        probe = limit.breaker is not None and self._wants_probe(database_now)
        tally = None if limit.breaker is None or self.tally.empty else self.tally
        stale = limit.breaker is not None and not self.known
        probing = self.probe is not None or self.may_probe
        changed = (counted and (self.in_use, wanted) != (0, 0)) or self.told != (0, 0) or self.permits > 0
        if not (changed or tokens or back or probe or tally or stale or probing):
            return None
        if tally is not None:
            self.tally = Tally()
        self.used = 0
        self.peak = self.in_use
        return Ask(self.scope, limit, self.in_use, wanted if counted else 0, tokens, tuple(back), tally, probe)

    def _allows(self, now: float, database_now: float) -> bool:
        """Whether tokens would be of use: nothing else stands in the way."""
        if self.limit.breaker is not None and not self._closed(self.limit.breaker, database_now) and not self.may_probe:
            return False
        return now >= self.more_at

    def _wants_probe(self, database_now: float) -> bool:
        if self.probe is not None or (self.may_probe and self.demand):
            return True
        return bool(self.demand) and self.circuit.phase != "closed" and database_now >= self.circuit.until

    def answer(self, answer: Answer, worker: str, asked: float, database_now: float, left_seconds: float) -> None:
        """Note what was decided for a question asked at this instant."""
        if answer.permits > self.permits or answer.tokens:
            self.kept_until = asked + _KEEP_SECONDS
        self.permits, self.others = answer.permits, answer.others
        self.valid_until = asked + left_seconds
        if answer.tokens:
            self.blocks.append(Block(answer.tokens, asked + LIFE_SECONDS, database_now))
        self.more_at = asked + answer.more_seconds if not answer.tokens else 0.0
        self.see(answer.circuit, worker)

    def see(self, circuit: Circuit, worker: str) -> None:
        """Note the state of the breaker."""
        self.circuit, self.known = circuit, True
        mine = circuit.phase == "half_open" and circuit.prober == worker
        self.may_probe = mine and self.probe is None and not self.tally.probe

    def failed(self, ask: Ask) -> None:
        """The question was not answered: tell the same again. Tokens that were on their way back are lost."""
        if ask.tally is not None:
            mine, self.tally = self.tally, ask.tally
            self.tally.calls += mine.calls
            self.tally.failed += mine.failed
            self.tally.in_a_row = mine.in_a_row + (ask.tally.in_a_row if mine.failed == mine.calls else 0)
            self.tally.rest_seconds = max(self.tally.rest_seconds, mine.rest_seconds)
            self.tally.probe = mine.probe or self.tally.probe
            self.tally.reason = mine.reason or self.tally.reason
        self.told = (-1, -1)

    def meets_probe(self, delivery: int) -> bool:
        """Whether the delivery is the probe."""
        return self.probe == delivery


def granted(circuit: Circuit, ask: Ask, worker: str, now: float, *, alive: bool, jitter: float) -> Circuit:
    """The breaker's state after what a worker tells and asks; `alive` says whether the present prober is."""
    if ask.limit.breaker is None:
        return circuit
    if ask.tally is not None:
        circuit = after(circuit, ask.tally, ask.limit.breaker, now, jitter)
    if ask.probe:
        return probing(circuit, worker, now, alive=alive)
    if circuit.phase == "half_open" and circuit.prober == worker and ask.tally is None:
        return probing(circuit, "", now, alive=False)  # it has nothing to probe with any more
    return circuit
