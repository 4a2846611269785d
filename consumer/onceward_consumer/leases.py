"""External commands in the ledger: claimed with a lease before they run, completed with a fence afterwards (design D4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from psycopg import IntegrityError, errors

from onceward_consumer import settle
from onceward_consumer.admission import admit, admit_released
from onceward_consumer.deliveries import Address, Kind, columns_of
from onceward_consumer.failure_outcomes import retried
from onceward_consumer.failures import Transient
from onceward_consumer.groups import PASSING, stop_followers, unstorable
from onceward_consumer.items import Engine, Item
from onceward_consumer.literals import written
from onceward_consumer.outcomes import Busy, Dead, Done, Duplicate
from onceward_consumer.redaction import describe
from onceward_consumer.release import Released, followers, let_through, lock_keys, over, turn
from onceward_consumer.script import Answer, Begin, Commit, Execute, Fetch, Rollback, Script, Statement
from onceward_runtime.sql import query

_SET: Final = query("onceward_consumer", "ledger_set")
_FENCE: Final = query("onceward_consumer", "ledger_fence")
_FINISH: Final = query("onceward_consumer", "ledger_finish")
_HAND_BACK: Final = query("onceward_consumer", "ledger_hand_back")
_LEASE: Final = query("onceward_consumer", "holds_lease")
_UNLEASE: Final = query("onceward_consumer", "holds_unlease")
_KEYS: Final = 50

FENCED: Final = Duplicate("fenced")
"""Another worker took it over while this one ran it; what this one found out does not count."""


def claim(items: Sequence[Item], engine: Engine, *, short: bool = False) -> Script[None]:
    """Lease those that may run: they have no outcome afterwards. For the others the outcome is durable."""
    yield Begin(False)
    yield from admit(items, engine, lease=True, short=short)
    yield from _lease(items, engine, [])


def refusal(error: BaseException) -> bool:
    """Whether it is what is written that PostgreSQL, or the engine, does not take; not that the database is away."""
    if isinstance(error, PASSING):
        return False
    return unstorable(error) or isinstance(error, (IntegrityError, errors.RaiseException))


def claim_released(
    engine: Engine, kind: Kind, keys: int = _KEYS, *, refused: tuple[UUID, str] | None = None
) -> Script[Released]:
    """Lease the next follower of each draining key whose next follower is of this kind.

    Where that is refused it is done for one key; and the follower of that one is a dead letter if it is refused again.
    """
    items: list[Item] = []
    try:
        yield Begin(False)
        draining = yield from lock_keys(engine, keys)
        if not draining:
            yield Rollback()
            return Released(0, [])
        found = let_through((yield from followers(draining, engine, kind, 1)), engine)
        items, others = found.items, found.others
        for item in items:
            if refused is not None and item.id == refused[0]:
                item.refuse("unstorable", refused[1])
        yield from admit_released(items, engine)
        leased = [i.delivery.address for i in items if i.outcome is None and i.delivery.address is not None]
        empty = draining.keys() - {i.delivery.address for i in items}
        yield from _lease(items, engine, leased, sorted(empty))
        return Released(len(items), items, frozenset(others.values()))
    except BaseException as error:
        over(items, engine)
        if not refusal(error) or (keys == 1 and (refused is not None or not items)):
            raise
        yield Rollback()
        culprit = (items[0].id, describe(error)) if keys == 1 else None
        return (yield from claim_released(engine, kind, 1, refused=culprit))


def _lease(
    items: Sequence[Item], engine: Engine, leased: Sequence[Address], empty: Sequence[Address] = ()
) -> Script[None]:
    now = engine.clock.latest()
    for item in items:
        if item.crashed and item.outcome is None:
            _judge_crash(item, engine)
    stop_followers(items)
    statements = settle.statements([i for i in items if i.outcome is not None], engine, now)
    taken = [i for i in items if i.outcome is None and (i.known or i.attempt != 1)]  # a fresh row says 1
    if taken:
        statements += [written(_running(taken, engine)), *settle.crashes([i for i in taken if i.crashed], engine)]
    if leased:
        statements.append(Statement(_LEASE, _leasing(leased, engine)))
    finished = [i.delivery.address for i in items if i.released and i.outcome is not None and i.delivery.address]
    if others := sorted({*finished, *empty}):
        held, _ = settle.holds_changed(items, now)
        if free := [address for address in others if address not in held]:
            statements += settle.let_go(free, engine.group)
    leasing = [item for item in items if item.outcome is None]
    engine.hands.take(leasing)
    try:
        if statements:
            yield Execute(statements)
        yield Commit()
    except BaseException:
        engine.hands.drop(leasing)
        raise


def _judge_crash(item: Item, engine: Engine) -> None:
    """The worker's death was an attempt. Another follows at once, if the policy has one left."""
    item.attempt -= 1
    verdict = retried(item, Transient("worker_lost"), "The worker that ran it is gone.", engine.clock.latest())
    if isinstance(verdict, Dead):
        item.outcome, item.crashed = Dead("worker_lost", verdict.error), False
    else:
        item.attempt += 1


def _running(items: Sequence[Item], engine: Engine) -> Statement:
    return Statement(
        _SET,
        {
            "group": engine.group,
            "ids": [i.id for i in items],
            "states": ["running"] * len(items),
            "attempts": [i.attempt for i in items],
            "before": [i.attempts_before for i in items],
            "reasons": [None] * len(items),
            "incarnations": [engine.incarnation] * len(items),
            "failed": [i.crashed for i in items],
        },
    )


def is_plain(item: Item) -> bool:
    """Whether nothing follows from the command's end but that it is done."""
    return (
        isinstance(item.outcome, Done)
        and not (item.known or item.released or item.heads or item.crashed or item.drafts or item.run_items)
        and (item.handler is None or item.handler.item_stage is None)
    )


def complete_plain(items: Sequence[Item], engine: Engine) -> Script[None]:
    """As `complete`, for items that are plain: one statement, which is its own transaction."""
    [answer] = yield Fetch([written(Statement(_FINISH, _own(items, engine)))])
    _fence(items, answer)
    engine.hands.drop(items)


def _own(items: Sequence[Item], engine: Engine) -> dict[str, Any]:
    ordered = sorted(items, key=lambda item: item.id_hex)
    return {
        "group": engine.group,
        "ids": [item.id for item in ordered],
        "attempts": [item.attempt for item in ordered],
        "incarnation": engine.incarnation,
    }


def _fence(items: Sequence[Item], answer: Answer) -> set[UUID]:
    own = {row[0] for row in answer.rows}
    for item in items:
        item.known = True
        if item.id not in own and not isinstance(item.outcome, Busy):  # one to be handed back comes again in any case
            item.outcome = FENCED
    return own


def complete(items: Sequence[Item], engine: Engine) -> Script[None]:
    """Make the outcomes of leased commands durable; those that were taken over meanwhile become `FENCED`."""
    yield Begin(False)
    [answer] = yield Fetch([written(Statement(_FENCE, _own(items, engine)))])
    own = _fence(items, answer)
    ours = [item for item in items if item.id in own and not isinstance(item.outcome, Busy)]
    now = engine.clock.latest()
    statements = settle.statements(ours, engine, now)
    held, _ = settle.holds_changed(ours, now)
    through = {i.delivery.address: i.seq for i in ours if i.released and i.delivery.address is not None}
    if released := sorted(through.keys() - held.keys()):
        statements += [turn({each: through[each] for each in released}, engine), *settle.let_go(released, engine.group)]
    statements += _handed_back([item for item in items if isinstance(item.outcome, Busy)], engine)
    if statements:
        yield Execute(statements)
    yield Commit()
    engine.hands.drop(items)


def _handed_back(items: Sequence[Item], engine: Engine) -> list[Statement]:
    if not items:
        return []
    result = [Statement(_HAND_BACK, (engine.group, [item.id for item in items], engine.incarnation))]
    if leased := [i.delivery.address for i in items if i.released and i.delivery.address is not None]:
        result.append(Statement(_UNLEASE, _leasing(leased, engine)))
    return result


def _leasing(addresses: Sequence[Address], engine: Engine) -> dict[str, Any]:
    return columns_of(addresses, engine.group) | {"incarnation": engine.incarnation}
