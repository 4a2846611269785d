"""The loop that leases permits and tokens from PostgreSQL, tells what breakers saw, and sends parked commands round again.

Every worker has one. While no limit holds it looks once a second whether an operator has set one, and does nothing else.
"""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.types.json import Jsonb

from onceward_consumer.allotments import Bucket, Share, draw, permits
from onceward_consumer.breakers import Circuit
from onceward_consumer.buffer import Buffer
from onceward_consumer.items import Engine
from onceward_consumer.limited import Limited
from onceward_consumer.limiter import Limiter
from onceward_consumer.limits import ANY_TENANT, Limit, Override, rules
from onceward_consumer.pools import Answer, Ask, granted
from onceward_consumer.release import Wakeups
from onceward_runtime import events, log
from onceward_runtime.database_loop import DatabaseLoop
from onceward_runtime.postgres import SessionLimits
from onceward_runtime.settings import Settings
from onceward_runtime.sql import query

_PACKAGE: Final = "onceward_consumer"
_OVERRIDES: Final = query(_PACKAGE, "limits_of")
_STATES_ADD: Final = query(_PACKAGE, "limit_states_add")
_STATES_LOCK: Final = query(_PACKAGE, "limit_states_lock")
_STATES_SET: Final = query(_PACKAGE, "limit_states_set")
_STATES_FORGET: Final = query(_PACKAGE, "limit_states_forget")
_SHARES_OF: Final = query(_PACKAGE, "limit_shares_of")
_SHARES_SET: Final = query(_PACKAGE, "limit_shares_set")
_SHARES_FORGET: Final = query(_PACKAGE, "limit_shares_forget")
_CIRCUITS: Final = query(_PACKAGE, "limit_circuits")
_SESSION: Final = SessionLimits(
    lock_timeout=timedelta(seconds=2),
    statement_timeout=timedelta(seconds=5),
    idle_in_transaction_session_timeout=timedelta(seconds=1),  # a frozen worker would stop all others
)
_LOOK_SECONDS: Final = 1.0
_GAP_SECONDS: Final = 0.03
"""Between two exchanges with the database at least."""
_FORGET_SECONDS: Final = 600.0
_STOP_SECONDS: Final = 2.0
_PHASES: Final = {"closed": 0, "half_open": 1, "open": 2}


class State(NamedTuple):
    """A limit's row and its shares, as they are under its lock."""

    bucket: Bucket
    circuit: Circuit
    others: list[Share]
    dead: list[str]


class Decision(NamedTuple):
    """What becomes of the row and of the asking worker's share."""

    answer: Answer
    wanted: int
    bucket: Bucket


class LimitsKeeper(DatabaseLoop):
    """The loop as a service. `start` reads the limits once, so that nothing begins before they are known."""

    def __init__(
        self,
        database: Settings | str,
        engine: Engine,
        limiter: Limiter,
        declared: Mapping[str, Limit],
        buffer: Buffer,
        wakeups: Wakeups,
    ) -> None:
        super().__init__("limits", database, self._turn, limits=_SESSION)
        self._engine = engine
        self._limiter = limiter
        self._declared = declared
        self._buffer = buffer
        self._wakeups = wakeups
        self._worker = str(engine.incarnation)
        self._known: set[str] = set()
        self._overrides: dict[str, Override] = {}
        self._look_at = self._exchange_at = 0.0
        self._looked_at = time.monotonic()
        self._forget_at = time.monotonic() + _FORGET_SECONDS
        self._limited = Limited(engine, limiter)
        self._shown: set[str] = set()
        limiter.configure(rules(declared, {}))
        limiter.need = self.wake
        if limiter.active:
            buffer.throttled_by(limiter)

    def start(self) -> None:
        """Read what operators have set, then run. Raises: DatabaseError when the database does not answer."""
        with self._connect() as connection:
            self._look(connection)
            handlers = self._engine.handlers.values()
            named = {f"lane:{handler.lane}" for handler in handlers} | {f"type:{handler.type}" for handler in handlers}
            self._add(connection, sorted((named | self._declared.keys()) - {ANY_TENANT}))
        super().start()

    def stop(self) -> None:
        """End, but do not wait long for a database that does not answer: nobody needs what it would say."""
        ending = threading.Thread(target=super().stop, name="onceward-limits-stop", daemon=True)
        ending.start()
        ending.join(_STOP_SECONDS)

    def _turn(self, connection: psycopg.Connection[Any]) -> float:
        self._permit()
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._look(connection)
        if self._limiter.active:
            if now < self._exchange_at:
                return self._exchange_at - now
            self._limiter.waits(self._buffer.behind())
            if asks := self._limiter.asks():
                self._exchange_at = now + _GAP_SECONDS
                self._exchange(connection, asks)
            self._permit()
        rest = self._limiter.rests() if self._limiter.active else _LOOK_SECONDS
        return max(0.0, min(rest, self._look_at - time.monotonic()))

    def _permit(self) -> None:
        names, followers = self._limiter.freed()
        if names:
            self._buffer.permitted(names)
        if followers:
            self._wakeups.set()

    def _look(self, connection: psycopg.Connection[Any]) -> None:
        """What operators have set; and once a second what else there is to do while limits hold."""
        found = {row[0]: Override(*row[1:]) for row in connection.execute(_OVERRIDES, (self._engine.group,)).fetchall()}
        if found != self._overrides:
            self._overrides = found
            log.emit(events.LIMITS_CHANGED, group=self._engine.group, limits=sorted(found))
            self._limited.hurry()
            freed = self._limiter.configure(rules(self._declared, found))
            if self._limiter.active:
                self._buffer.throttled_by(self._limiter)
            self._buffer.permitted(freed)
        now = time.monotonic()
        if self._limiter.active:
            self._limiter.tick(now - self._looked_at)
            self._read_circuits(connection)
            self._show()
            if now >= self._forget_at:
                self._forget_at = now + _FORGET_SECONDS
                connection.execute(_STATES_FORGET, (self._engine.group,))
                self._known.clear()
        self._looked_at = now
        self._limited.requeue(connection)

    def _read_circuits(self, connection: psycopg.Connection[Any]) -> None:
        scopes = [seen.scope for seen in self._limiter.look(count=False) if seen.phase is not None]
        if scopes:
            rows = connection.execute(_CIRCUITS, (self._engine.group, scopes)).fetchall()
            self._limiter.see((scope, Circuit.from_json(circuit)) for scope, circuit in rows)

    def _exchange(self, connection: psycopg.Connection[Any], asks: list[Ask]) -> None:
        try:
            self._exchanged(connection, asks)
        except BaseException:
            self._limiter.failed(asks)
            self._known.clear()
            raise

    def _exchanged(self, connection: psycopg.Connection[Any], asks: list[Ask]) -> None:
        group = self._engine.group
        scopes = sorted(ask.scope for ask in asks)
        if new := [scope for scope in scopes if scope not in self._known]:
            self._add(connection, new)
        asked = time.monotonic()
        with connection.pipeline(), connection.transaction():
            locked = connection.execute(_STATES_LOCK, (group, scopes))
            shares = connection.execute(
                _SHARES_OF, {"group": group, "scopes": scopes, "incarnation": self._engine.incarnation}
            )
            states, now, left = _states(locked.fetchall(), shares.fetchall(), self._worker)
            decisions = {
                ask.scope: decide(ask, states[ask.scope], self._worker, now, random.random())
                for ask in asks
                if ask.scope in states
            }
            told = self._write(connection, states, decisions)
        if gone := [ask for ask in asks if ask.scope not in states]:  # forgotten for want of use; made again next time
            self._limiter.failed(gone)
            self._known.difference_update(ask.scope for ask in gone)
        self._limiter.told(told)
        self._limiter.answers((decision.answer for decision in decisions.values()), asked, now, left)
        for scope, decision in decisions.items():
            self._tell(scope, states[scope].circuit, decision.answer.circuit)

    def _add(self, connection: psycopg.Connection[Any], scopes: list[str]) -> None:
        said = [str(rules(self._declared, {}).of(scope)) for scope in scopes]
        connection.execute(_STATES_ADD, (self._engine.group, scopes, said))
        self._known.update(scopes)

    def _write(
        self, connection: psycopg.Connection[Any], states: Mapping[str, State], decisions: Mapping[str, Decision]
    ) -> list[tuple[str, int, int]]:
        """Write what has changed; returns the shares as they are now."""
        group = self._engine.group
        told = [(scope, each.answer.permits, each.wanted) for scope, each in decisions.items()]
        if new := [share for share in told if self._limiter.share(share[0]) != share[1:]]:
            connection.execute(
                _SHARES_SET,
                {
                    "group": group,
                    "incarnation": self._engine.incarnation,
                    "scopes": [share[0] for share in new],
                    "permits": [share[1] for share in new],
                    "wanted": [share[2] for share in new],
                },
            )
        if dead := [(scope, worker) for scope, state in states.items() for worker in state.dead]:
            connection.execute(_SHARES_FORGET, (group, [scope for scope, _ in dead], [worker for _, worker in dead]))
        changed = {
            scope: each
            for scope, each in decisions.items()
            if (each.bucket, each.answer.circuit) != (states[scope].bucket, states[scope].circuit)
        }
        if changed:
            connection.execute(
                _STATES_SET,
                {
                    "group": group,
                    "scopes": list(changed),
                    "tokens": [each.bucket.tokens for each in changed.values()],
                    "filled": [each.bucket.filled_at for each in changed.values()],
                    "circuits": [Jsonb(each.answer.circuit.to_json()) for each in changed.values()],
                },
            )
        return told

    def _tell(self, scope: str, before: Circuit, after: Circuit) -> None:
        if before.phase == after.phase:
            return
        fields: dict[str, Any] = {"group": self._engine.group, "destination": scope.partition(":")[2]}
        if after.phase == "open":
            seconds = round(after.until - after.since, 3)
            log.emit(events.BREAKER_OPENED, **fields, reason=after.reason, seconds=seconds, trips=after.trips)
        elif after.phase == "closed":
            log.emit(events.BREAKER_CLOSED, **fields, seconds=round(after.since - before.since, 3))
        else:
            log.emit(events.BREAKER_PROBING, **fields, reason=before.reason)

    def _show(self) -> None:
        """Set the gauges. Tenants are counted together, for there may be many."""
        running: defaultdict[str, int] = defaultdict(int)
        waiting: defaultdict[str, int] = defaultdict(int)
        group = self._engine.group
        for seen in self._limiter.look():
            name = "tenant" if seen.scope.startswith("tenant:") else seen.scope
            running[name] += seen.in_use
            waiting[name] += seen.waiting
            if seen.refused:
                events.LIMIT_REFUSALS.labels(group, name, seen.reason).inc(seen.refused)
            if seen.phase is not None:
                events.BREAKER_STATE.labels(group, seen.scope.partition(":")[2]).set(_PHASES[seen.phase])
        for name in self._shown | running.keys():
            events.LIMIT_RUNNING.labels(group, name).set(running[name])
            events.LIMIT_WAITING.labels(group, name).set(waiting[name])
        self._shown = set(running)


def _states(locked: list[Any], shares: list[Any], worker: str) -> tuple[dict[str, State], float, float]:
    """The rows by scope, the database's time, and how long this worker's lease runs."""
    result = {
        scope: State(Bucket(tokens, filled_at), Circuit.from_json(circuit), [], [])
        for scope, tokens, filled_at, circuit in locked
    }
    own, *rest = shares
    for scope, incarnation, held, wanted, left, _ in rest:
        name = str(incarnation)
        if scope not in result or name == worker:
            continue
        if left > 0:
            result[scope].others.append(Share(name, held, wanted))
        else:
            result[scope].dead.append(name)
    return result, own[5], own[4] if own[4] is not None else -1.0


def decide(ask: Ask, state: State, worker: str, now: float, jitter: float) -> Decision:
    """Answer one worker; under the lock of the limit's row."""
    limit = ask.limit
    held = 0
    if limit.concurrency is not None:
        allowed = 0 if limit.paused else limit.concurrency
        held = permits(allowed, worker, ask.in_use, ask.wanted, state.others, now)
    bucket, tokens, more = state.bucket, 0, 0.0
    if limit.rate is not None and (ask.tokens or ask.back):
        rivals = sum(1 for share in state.others if share.wanted)
        tokens, bucket, more = draw(bucket, limit.rate, now, ask.tokens, ask.back, rivals)
    live = {share.worker for share in state.others} | {worker}
    circuit = granted(state.circuit, ask, worker, now, alive=state.circuit.prober in live, jitter=jitter)
    wanted = max(ask.wanted, 1 if circuit.prober == worker else 0)
    others = sum(max(0, share.wanted - share.permits) for share in state.others)
    return Decision(Answer(ask.scope, held, tokens, more, circuit, others), wanted, bucket)
