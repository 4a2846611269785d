"""The first half of a transaction: which of its commands may run, by ledger and holds, seen and locked in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from onceward_consumer import deaths, ledger
from onceward_consumer.deliveries import Address, columns_of
from onceward_consumer.items import Engine, Item
from onceward_consumer.literals import written
from onceward_consumer.outcomes import BEYOND_LEDGER, Busy, Duplicate, Parked
from onceward_consumer.script import Answer, Fetch, Script, Statement
from onceward_runtime.sql import query

_CLAIM: Final = query("onceward_consumer", "ledger_claim")
_CLAIM_RUNNING: Final = query("onceward_consumer", "ledger_claim_running")
_LOOK: Final = query("onceward_consumer", "ledger_look")
_HOLDS_OF: Final = query("onceward_consumer", "holds_of")
_HOLDS_LOCK: Final = query("onceward_consumer", "holds_lock")
_HOLDS_SHARE: Final = query("onceward_consumer", "holds_share")
_LOCK_TIMEOUT: Final = "select set_config('lock_timeout', %s, true)"
_SHORT_LOCK: Final = timedelta(milliseconds=100)

HELD: Final = Parked("held")


def admit(items: Sequence[Item], engine: Engine, *, lease: bool = False, short: bool = False) -> Script[None]:
    """Claim the commands in the ledger and decide on those that may not run: they have an outcome afterwards.

    The holds are looked at by a statement after the claim: the claim may have waited for another worker's transaction,
    and must see what that one left. With `lease` new rows say that this worker runs them. With `short` locks are not
    waited for long.
    """
    todo = _claimable(items)
    if not todo:
        return
    ids = "{" + ",".join(sorted({item.id_hex for item in todo})) + "}"
    addresses = sorted({item.delivery.address for item in todo if item.ordered})  # type: ignore[type-var]
    statements = [_claim(ids, engine, lease)]
    if addresses:
        statements.append(_about(_HOLDS_OF, addresses, engine))  # type: ignore[arg-type]
    if short:
        statements = [_lock_timeout(_SHORT_LOCK), *statements, _lock_timeout(engine.lock_timeout)]
    answers = yield Fetch(statements)
    if short:
        answers = answers[1:-1]
    yield from _known(todo, answers[0], engine)
    if addresses and answers[1].count:
        yield from _behind_holds(todo, set(answers[1].rows), engine)
    yield from _former_heads(todo, engine)
    deaths.judge(todo, engine)


def admit_released(items: Sequence[Item], engine: Engine) -> Script[None]:
    """The same for parked commands, whose holds the caller has locked."""
    yield from _look(items, engine)
    deaths.judge(items, engine)


def _claimable(items: Iterable[Item]) -> list[Item]:
    """Those that can be decided now; whoever is behind one that cannot waits with it."""
    waiting: dict[Address, Busy] = {}
    result = []
    for item in items:
        address = item.delivery.address
        if isinstance(item.outcome, Busy):
            if address is not None:
                waiting.setdefault(address, item.outcome)
        elif waiting and item.ordered and address in waiting:
            item.outcome = waiting[address]
        else:
            result.append(item)
    return result


def _claim(ids: str, engine: Engine, lease: bool) -> Statement:
    if lease:
        return Statement(_CLAIM_RUNNING, (ids, engine.group, engine.incarnation))
    return Statement(_CLAIM, (ids, engine.group))


def _known(items: Sequence[Item], claimed: Answer, engine: Engine) -> Script[None]:
    oldest = int((engine.clock.latest() - engine.reach).timestamp() * 1000)
    if claimed.count == len(items):
        for item in items:
            if item.id.int >> 80 < oldest:
                _check_age(item, oldest)
        return
    fresh = {row[0] for row in claimed.rows}
    taken: set[UUID] = set()
    seen = []
    for item in items:
        if item.id in fresh and item.id not in taken:
            taken.add(item.id)
            _check_age(item, oldest)
        else:
            seen.append(item)
    yield from _look(seen, engine, taken)


def _check_age(item: Item, oldest_ms: int) -> None:
    """A command that nobody remembers is only known to be new if the ledger reaches back to when it could first run."""
    if item.id.int >> 80 >= oldest_ms or item.id.version != 7 or item.since_ms >= oldest_ms:
        return
    if item.outcome is None or isinstance(item.outcome, Parked):  # one to be parked would be run later
        item.outcome = BEYOND_LEDGER


def _look(seen: Sequence[Item], engine: Engine, taken: Iterable[UUID] = ()) -> Script[None]:
    """Decide by the rows of the ledger. Commands `taken` by this claim have their record already; others are duplicates."""
    ids = sorted({item.id for item in seen})
    [answer] = yield Fetch([written(Statement(_LOOK, (engine.group, ids)))])
    rows = {row[0]: ledger.Known(*row) for row in answer.rows}
    decided = set(taken)
    for item in seen:
        row = rows.get(item.id)
        if row is None or item.id in decided:
            item.outcome = Duplicate("same_group" if row is not None else "vanished")
            continue
        item.known = True
        forgotten = row.incarnation == engine.incarnation and not engine.hands.hold(item.id)
        verdict = ledger.judge(row, item.attempt, released=item.released, forgotten=forgotten)
        if isinstance(verdict, ledger.Proceed):
            decided.add(item.id)
            item.attempt, item.crashed = verdict.attempt, verdict.crashed
            item.attempts_before, item.first_failed_at = row.attempts_before, row.first_failed_at
        elif item.outcome is None or not isinstance(item.outcome, Busy):
            item.outcome = verdict


def _behind_holds(items: Sequence[Item], held: set[Address], engine: Engine) -> Script[None]:
    open_items = [i for i in items if i.ordered and i.delivery.address in held and _undecided(i)]
    if not open_items:
        return
    heads = sorted({i.delivery.address for i in open_items if i.known})  # type: ignore[type-var]
    others = sorted({i.delivery.address for i in open_items} - set(heads))  # type: ignore[type-var]
    statements = []
    if heads:
        statements.append(_about(_HOLDS_LOCK, heads, engine))  # type: ignore[arg-type]
    if others:
        statements.append(_about(_HOLDS_SHARE, others, engine))  # type: ignore[arg-type]
    answers = yield Fetch(statements)
    holds = {(lane, key): head for answer in answers for lane, key, _, head in answer.rows}
    for item in open_items:
        head = holds.get(item.delivery.address)  # type: ignore[arg-type]
        if head is None:
            continue
        if head == item.id and item.known:
            item.heads = True
        else:
            item.outcome = HELD


def _former_heads(items: Sequence[Item], engine: Engine) -> Script[None]:
    """Heads of their keys whose type has no order any more, or turned out to have none: the keys wait for them still."""
    known = {i.id: i for i in items if i.known and not i.ordered and i.delivery.address is not None and _undecided(i)}
    if not known:
        return
    addresses = sorted({i.delivery.address for i in known.values()})  # type: ignore[type-var]
    [answer] = yield Fetch([_about(_HOLDS_LOCK, addresses, engine)])  # type: ignore[arg-type]
    for _, _, _, head in answer.rows:
        if head in known:
            known[head].heads = True


def _undecided(item: Item) -> bool:
    return item.outcome is None or item.outcome is item.given


def _about(text: str, addresses: Sequence[Address], engine: Engine) -> Statement:
    return written(Statement(text, columns_of(addresses, engine.group)))


def _lock_timeout(limit: timedelta) -> Statement:
    value: Any = f"{max(1, round(limit.total_seconds() * 1000))}ms"
    return Statement(_LOCK_TIMEOUT, (value,))
