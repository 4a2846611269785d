"""Run the parked followers of keys whose head is resolved, in order, guarded by the lock on the key's hold (design D5).

Several workers may do this at once: each locks its keys and skips those of the others. A crash leaves the hold draining
and the followers parked.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from onceward_consumer import losses, settle
from onceward_consumer.admission import admit_released
from onceward_consumer.batches import call_released
from onceward_consumer.connections import NeedsResultError
from onceward_consumer.deliveries import Address, Delivery, Kind, columns_of, headers_from_json
from onceward_consumer.failure_outcomes import outcome_of
from onceward_consumer.groups import PASSING, slower_mode, unstorable
from onceward_consumer.items import Engine, Item, prepared
from onceward_consumer.literals import written
from onceward_consumer.moods import Mode, Mood
from onceward_consumer.outcomes import Busy, Outcome
from onceward_consumer.redaction import describe
from onceward_consumer.script import Begin, Commit, Execute, Fetch, Rollback, Script, Statement
from onceward_runtime.sql import query

_LOCK: Final = query("onceward_consumer", "release_lock")
_LOCK_THESE: Final = query("onceward_consumer", "release_lock_these")
_PARKED: Final = query("onceward_consumer", "release_parked")
_TURN: Final = query("onceward_consumer", "holds_turn")
_KEYS: Final = 100
_MOST: Final = 200
"""Followers that a round runs, shared evenly by its keys: one that has very many takes no longer than its turn."""
_LEAST: Final = 2
_MOST_BYTES: Final = 8 << 20
_LOOKS: Final = 5
"""How often a round looks for keys of its kind where those that wait longest are all of other kinds."""


class Judged(NamedTuple):
    """The outcome of a follower whose transaction cannot be committed."""

    command_id: UUID
    outcome: Outcome | None
    """None where not even that could be stored; it is refused for `error` then."""
    error: str = ""


class Released(NamedTuple):
    """What one round did."""

    keys: int
    """How many keys may have more to be run, as far as the round has seen; the next one is worth while then."""
    items: list[Item]
    others: frozenset[Kind] = frozenset()
    """Kinds of executors to which keys were left."""


class Followers(NamedTuple):
    """The first followers of some keys that one kind runs."""

    items: list[Item]
    more: set[Address]
    """Keys that have more than these."""
    others: dict[Address, Kind]
    """Keys whose first follower is another kind's."""
    refused: frozenset[Address] = frozenset()
    """Those of `more` in whose way a limit stands: that is told (Limiter.freed), and not to be asked again and again."""


Place: TypeAlias = Literal["here", "cells", "nowhere"]
_FIXED: Final = ("cell ", "external ")
"""Kinds whose followers always run in the same place."""


class Wakeups:
    """Says to each kind of executor that keys may wait to be drained."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._kinds = frozenset(kinds)
        self._lock = threading.Lock()
        self._due: set[Kind] = set()
        self._listeners: list[Callable[[], None]] = []
        self.place: Callable[[], Place] = lambda: "here"
        """Where transactional followers are run now."""

    def listen(self, wake: Callable[[], None]) -> None:
        """Call `wake`, from any thread, when there is something to do."""
        self._listeners.append(wake)

    def set(self) -> None:
        """There may be something to do for everybody."""
        with self._lock:
            self._due = set(self._kinds)
        for wake in self._listeners:
            wake()

    def set_for(self, kind: Kind) -> None:
        """One kind did not come to an end with it."""
        with self._lock:
            self._due.add(kind)

    def wake(self, kinds: Iterable[Kind]) -> None:
        """There is something to do for these."""
        with self._lock:
            new = self._kinds.intersection(kinds) - self._due
            self._due |= new
        if new:
            for wake in self._listeners:
                wake()

    def due(self, kind: Kind, place: Place = "here") -> bool:
        """Whether to look; asks once for each `set`."""
        with self._lock:
            found = kind in self._due
            if found and not kind.startswith(_FIXED) and self.place() != place:
                return False  # it stays due, for others or for later
            self._due.discard(kind)
            return found


def release_group(
    engine: Engine,
    kind: Kind,
    *,
    keys: int = _KEYS,
    per_key: int | None = None,
    mood: Mood | None = None,
    mode: Mode | None = None,
    judged: Judged | None = None,
    looks: int = _LOOKS,
) -> Script[Released]:
    """One round: lock some draining keys, run the first followers of each, let go of keys that have none left.

    Only followers that this kind of executor runs are touched; a key whose next follower is another's is left to it. As a
    group is, a round that fails is run again with more care, at last with one follower at a time, so that it is known whose
    fault it was.
    """
    if mode is None:
        mode = Mode.CAREFUL if keys == 1 else mood.mode() if mood is not None else Mode.SWIFT
    items: list[Item] = []
    others: frozenset[Kind] = frozenset()
    try:
        draining, found, others = yield from _own_keys(engine, kind, keys, per_key, mode)
        if not draining:
            return Released(0, [], others)
        found = let_through(found, engine)
        items = found.items
        if not items and found.more and looks > 1 and len(draining) == keys:  # limits let none of them run: see others
            yield Execute([turn(dict.fromkeys(draining, 0), engine)])
            yield Commit()
            return _also(others, (yield from release_group(engine, kind, keys=keys, mood=mood, looks=looks - 1)))
        for item in items:
            if judged is not None and item.id == judged.command_id and judged.outcome is None:
                item.refuse("unstorable", judged.error)
        if keys > 1 and engine.losses and any(item.id in engine.losses for item in items):
            yield Rollback()
            over(items, engine)
            return _also(others, (yield from release_group(engine, kind, keys=1, per_key=1)))
        yield from admit_released(items, engine)
        for item in items:
            if judged is not None and item.id == judged.command_id and judged.outcome is not None:
                item.outcome = judged.outcome
        raised = yield from call_released(items, engine, mode)
        statements = settle.statements(items, engine, engine.clock.latest())
        yield Execute(statements + _after(draining, found, engine))
        yield Commit()
        over(items, engine)
        losses.forget(items, engine)
        if mood is not None:
            mood.note(raised=raised > 0, refused=False)
        more = len(found.more - found.refused)
        return Released(len(draining) if len(draining) >= keys and (items or more) else more, items, others)
    except (Exception, NeedsResultError) as error:
        over(items, engine)
        yield Rollback()
        if keys > 1 and mode is not Mode.CAREFUL:
            slower = slower_mode(mode, error)
            if mood is not None:
                mood.note(raised=slower is Mode.GUARDED, refused=slower is Mode.CAREFUL)
            return _also(others, (yield from release_group(engine, kind, keys=keys, per_key=per_key, mode=slower)))
        if keys > 1:
            return _also(others, (yield from release_group(engine, kind, keys=1, per_key=1)))
        if isinstance(error, NeedsResultError):
            raise
        if judged is not None or not items or items[0].command is None:
            if not items or items[0].envelope is None or not unstorable(error):
                raise
            refused = Judged(items[0].id, None, describe(error))
            return _also(others, (yield from release_group(engine, kind, keys=1, per_key=1, judged=refused)))
        if not isinstance(error, PASSING):
            verdict = Judged(items[0].id, outcome_of(error, items[0], engine))
            return _also(others, (yield from release_group(engine, kind, keys=1, per_key=1, judged=verdict)))
        yield Begin(False)
        yield Execute([turn(dict.fromkeys(draining, 0), engine)])
        yield Commit()
        return Released(0, [], others)
    finally:
        over(items, engine)


def let_through(found: Followers, engine: Engine) -> Followers:
    """Those that limits let run now; the others stay parked, and their keys at the end of the queue. `over` follows."""
    if engine.limiter is None or not engine.limiter.active:
        return found
    passed = engine.limiter.admit_all([item.delivery for item in found.items])
    items = [item for item, may in zip(found.items, passed, strict=True) if may]
    left = [item.delivery.address for item, may in zip(found.items, passed, strict=True) if not may]
    refused = frozenset(address for address in left if address is not None)
    return found._replace(items=items, more=found.more | refused, refused=refused)


def over(items: Sequence[Item], engine: Engine) -> None:
    """What limits had let through is over. Doing it twice is fine."""
    if engine.limiter is not None and items:
        engine.limiter.over(items)


def _also(others: frozenset[Kind], released: Released) -> Released:
    return released._replace(others=others | released.others)


def _own_keys(
    engine: Engine, kind: Kind, keys: int, per_key: int | None, mode: Mode
) -> Script[tuple[dict[Address, int], Followers, frozenset[Kind]]]:
    """Begin a transaction that has locked keys of this kind only, or none at all where there are no such keys.

    The others' locks are let go at once: a group's handlers may take long, and the others' executors must not wait for
    them. What is found of others goes behind, so that the next look finds something else.
    """
    seen: set[Kind] = set()
    pipelined = mode in (Mode.SWIFT, Mode.GUARDED)
    for _ in range(_LOOKS):
        yield Begin(pipelined)
        draining = yield from lock_keys(engine, keys)
        if not draining:
            yield Rollback()
            break
        found = yield from followers(draining, engine, kind, per_key)
        if not found.others:
            return draining, found, frozenset(seen)
        seen.update(found.others.values())
        yield Execute([turn(dict.fromkeys(sorted(found.others), 0), engine)])
        yield Commit()
        if own := [address for address in draining if address not in found.others]:
            yield Begin(pipelined)
            if draining := (yield from _lock_these(own, engine)):
                found = yield from followers(draining, engine, kind, per_key)
                if not found.others:
                    return draining, found, frozenset(seen)
            yield Rollback()
        elif len(found.others) < keys:
            break
    return {}, Followers([], set(), {}), frozenset(seen)


def _lock_these(addresses: Sequence[Address], engine: Engine) -> Script[dict[Address, int]]:
    return (yield from _locked(_LOCK_THESE, columns_of(addresses, engine.group), engine))


def lock_keys(engine: Engine, keys: int) -> Script[dict[Address, int]]:
    """Lock draining keys that no transaction has locked and that nobody alive has in hand; up to where each is drained."""
    return (yield from _locked(_LOCK, {"group": engine.group, "limit": keys}, engine))


def _locked(text: str, values: dict[str, Any], engine: Engine) -> Script[dict[Address, int]]:
    """Keys may be leased while the statement is under way, so what is in hand is looked at again under the locks."""
    own = engine.hands.keys()
    values |= {
        "incarnation": engine.incarnation,
        "own_lanes": [lane for lane, _ in own],
        "own_keys": [key for _, key in own],
    }
    [answer] = yield Fetch([Statement(text, values)])
    now = set(engine.hands.keys()).difference(own)
    return {(lane, key): drained for lane, key, drained in answer.rows if (lane, key) not in now}


def followers(draining: Mapping[Address, int], engine: Engine, kind: Kind, per_key: int | None) -> Script[Followers]:
    """The first followers of each key, as many as `kind` runs; `per_key`, or an equal share of a round's most.

    One more is read of each, so that a key that has no more is known at once.
    """
    if per_key is None:
        per_key = max(_LEAST, _MOST // len(draining))
    parameters = columns_of(list(draining), engine.group)
    parameters |= {"drained": list(draining.values()), "per_key": per_key + 1, "most_bytes": _MOST_BYTES}
    [answer] = yield Fetch([written(Statement(_PARKED, parameters))])
    found = Followers([], set(), {})
    counts: Counter[Address] = Counter()
    for *row, seq in answer.rows:
        delivery = delivery_of(row, engine)
        address = delivery.address
        assert address is not None
        counts[address] += 1
        if delivery.kind != kind or counts[address] > per_key:
            found.more.add(address)
        if delivery.kind != kind:
            if counts[address] == 1:
                found.others[address] = delivery.kind
            counts[address] = per_key + 1  # whoever is behind it waits for it
        elif counts[address] <= per_key:
            item = prepared(delivery, engine)
            item.released, item.seq = True, seq
            found.items.append(item)
    return found


def delivery_of(row: Sequence[Any], engine: Engine) -> Delivery:
    """A parked row as the delivery that it was."""
    _, topic, partition, offset, timestamp_ms, key, payload, headers, lane, _ = row
    return Delivery(
        topic=topic,
        partition=partition,
        offset=offset,
        timestamp_ms=timestamp_ms,
        key=key,
        payload=payload,
        headers=headers_from_json(headers),
        lane=lane,
        assignment=None,
        handlers=engine.handlers,
    )


def _after(addresses: Iterable[Address], found: Followers, engine: Engine) -> list[Statement]:
    """What becomes of the holds: let go where nothing is left, at the end of the queue where something is."""
    held, _ = settle.holds_changed(found.items, engine.clock.latest())
    drained: dict[Address, int] = {}
    blocked: set[Address] = set()
    for item in found.items:
        address = item.delivery.address
        assert address is not None
        if isinstance(item.outcome, Busy):
            blocked.add(address)
        elif address not in blocked:
            drained[address] = item.seq
    free = sorted(address for address in addresses if address not in held)
    rest = {address: drained.get(address, 0) for address in free if address in blocked or address in found.more}
    gone = [address for address in free if address not in rest]
    result = settle.let_go(gone, engine.group) if gone else []
    return [*result, turn(rest, engine)] if rest else result


def turn(drained: Mapping[Address, int], engine: Engine) -> Statement:
    """Put draining keys at the end of the queue, each with the place up to which its followers are through."""
    columns = columns_of(list(drained), engine.group) | {"seqs": list(drained.values())}
    return written(Statement(_TURN, columns))
