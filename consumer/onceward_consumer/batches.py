"""A batch of commands in one transaction and one call: kept as a whole if all are done, else run again without those that are not.

What the handler names is rolled back with the rest and gets its outcome; its key's followers wait as its order says. An
exception says nothing about whose fault it was: the batch is run again in halves, down to the command that is alone with it.
Neither costs attempts.
"""

from __future__ import annotations

from collections.abc import Sequence

from onceward_consumer import losses, settle
from onceward_consumer.admission import admit
from onceward_consumer.batch_context import NamedError
from onceward_consumer.deliveries import Address
from onceward_consumer.failure_outcomes import outcome_of
from onceward_consumer.groups import COLLISIONS, DONE, call_all, single, stops
from onceward_consumer.items import Engine, Item
from onceward_consumer.moods import Mode
from onceward_consumer.outcomes import Busy, Outcome
from onceward_consumer.script import Begin, Call, Commit, Execute, Rollback, Script

_MOST_COLLISIONS = 5

Verdicts = dict[int, Exception]
"""What the handler said of items, by their identity in this process."""


class _AgainError(Exception):
    """The transaction has been undone. Its cause says why."""


def run_batch(items: Sequence[Item], engine: Engine) -> Script[None]:
    """Run items of one batch handler, in order; afterwards each has an outcome, and it is durable, unless it is Busy.

    Raises: as `groups.run_group`.
    """
    verdicts: Verdicts = {}
    busy: dict[Address, Outcome] = {}
    parts = [list(items)]
    while parts:
        part = _unless_busy(parts.pop(), busy)
        if not part:
            continue
        if len(part) == 1:
            yield from single(part[0], engine)
        elif engine.losses and any(item.id in engine.losses for item in part):
            parts += [[item] for item in reversed(part)]
            continue
        elif not (yield from _whole(part, engine, verdicts, short=len(part) < len(items))):
            half = len(part) // 2
            parts += [part[half:], part[:half]]
            continue
        if any(type(item.outcome) is Busy for item in part):
            for item in part:
                if isinstance(item.outcome, Busy):
                    stops(item, busy)


def _unless_busy(part: list[Item], busy: dict[Address, Outcome]) -> list[Item]:
    """Without those behind a command that has to come again; they come again with it."""
    if not busy:
        return part
    rest = []
    for item in part:
        if item.ordered and item.delivery.address in busy:
            item.outcome = busy[item.delivery.address]
        else:
            rest.append(item)
    return rest


def _whole(part: Sequence[Item], engine: Engine, verdicts: Verdicts, *, short: bool) -> Script[bool]:
    """Run a part as one transaction; False where that cannot be, and nothing has happened."""
    collisions = 0
    while True:
        try:
            yield from _transaction(part, engine, verdicts, short=short)
            return True
        except _AgainError as again:
            yield Rollback()
            for item in part:
                item.again()
            cause = again.__cause__
        if isinstance(cause, NamedError):
            continue
        collisions += 1
        if not _collided(cause) or collisions > _MOST_COLLISIONS:
            return False


def _transaction(part: Sequence[Item], engine: Engine, verdicts: Verdicts, *, short: bool) -> Script[None]:
    called: Sequence[Item] = ()
    try:
        yield Begin(False)
        yield from admit(part, engine, short=short)
        if called := to_call(part, engine, verdicts):
            yield Call(called[0], False, called)
            _done(called)
        if rows := settle.statements(part, engine, engine.clock.latest()):
            yield Execute(rows)
        yield Commit()
        losses.forget(part, engine)
    except GeneratorExit:
        raise
    except NamedError as error:
        verdicts |= {id(called[position]): said for position, said in error.outcomes.items()}
        raise _AgainError from error
    except BaseException as error:
        raise _AgainError from error


def call_released(items: Sequence[Item], engine: Engine, mode: Mode) -> Script[int]:
    """`groups.call_all`, but for a batch handler's commands in the swift mode: in batches, until one is not done as a whole."""
    handler = items[0].handler if items else None
    if mode is not Mode.SWIFT or handler is None or handler.mode != "batch":
        return (yield from call_all(items, engine, mode))
    called = to_call(items, engine, {})
    for start in range(0, len(called), handler.batch_size):
        some = called[start : start + handler.batch_size]
        yield Call(some[0], False, some)
        _done(some)
    return 0


def _done(called: Sequence[Item]) -> None:
    started, seconds = called[0].started, called[0].seconds
    for item in called:
        item.outcome, item.started, item.seconds = DONE, started, seconds


def to_call(items: Sequence[Item], engine: Engine, verdicts: Verdicts) -> Sequence[Item]:
    """The items that are to be called, as if they all succeeded; the others have their outcomes afterwards."""
    if not (verdicts or engine.losses or engine.given_up) and all(item.outcome is None for item in items):
        return items
    called: list[Item] = []
    stopped: dict[Address, Outcome] = {}
    for item in items:
        if stopped and (item.outcome is None or item.unresolved) and item.ordered and item.delivery.address in stopped:
            item.outcome = stopped[item.delivery.address]
        if item.outcome is None:
            error = verdicts.get(id(item)) or losses.verdict(item, engine)
            if error is None:
                called.append(item)
                continue
            item.outcome = outcome_of(error, item, engine)
        stops(item, stopped)
    return called


def _collided(error: BaseException | None) -> bool:
    """Whether the transaction, or what the handler made of that, met another's at the same rows."""
    while error is not None:
        if isinstance(error, COLLISIONS):
            return True
        error = error.__cause__ or error.__context__
    return False
