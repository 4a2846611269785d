"""A group of commands in one transaction: claimed, run, settled, committed; and what happens when that fails.

Every way to fail before the commit leaves nothing behind, so the group is simply run again, in a slower mode that finds
out whose fault it was. That costs no attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

import psycopg
from psycopg import errors

from onceward_consumer import losses, settle
from onceward_consumer.admission import HELD, admit
from onceward_consumer.connections import NeedsResultError
from onceward_consumer.deliveries import Address
from onceward_consumer.failure_outcomes import outcome_of
from onceward_consumer.failures import OverrunError
from onceward_consumer.items import Engine, Item
from onceward_consumer.moods import Mode, Mood
from onceward_consumer.outcomes import BEYOND_LEDGER, Busy, Dead, Done, Failed, Outcome
from onceward_consumer.redaction import describe
from onceward_consumer.script import Begin, Call, Commit, Execute, Rollback, Script

DONE: Final = Done()
_NEXT: Final = Busy(timedelta(0))
_LOCKED_REST: Final = timedelta(milliseconds=500)
_MOST_COLLISIONS: Final = 5
_MOST_STALLS: Final = 20

COLLISIONS: Final = (errors.DeadlockDetected, errors.SerializationFailure)
PASSING: Final = (*COLLISIONS, errors.LockNotAvailable)
"""What says nothing about a command: others were at the same rows."""


class _AgainError(Exception):
    """The transaction cannot end well in this mode."""

    def __init__(self, mode: Mode, cause: BaseException) -> None:
        self.mode = mode
        self.cause = cause


def run_group(items: Sequence[Item], engine: Engine, mood: Mood) -> Script[None]:
    """Run the items, in order; afterwards each has an outcome, and it is durable, unless it is Busy.

    Raises: ConnectionLostError or psycopg.Error when the database cannot be used; nothing has happened then.
    """
    mode, collisions = mood.mode(), 0
    raised = refused = False
    if engine.losses and any(item.id in engine.losses for item in items):
        mode = Mode.SINGLE
    while mode is not Mode.SINGLE:
        try:
            failures = yield from transaction(items, engine, mode)
            mood.note(raised=raised or failures > 0, refused=refused)
            return
        except _AgainError as again:
            yield Rollback()
            raised = raised or not isinstance(again.cause, psycopg.Error)
            refused = refused or isinstance(again.cause, psycopg.Error)
            if isinstance(again.cause, COLLISIONS) and collisions < _MOST_COLLISIONS:
                collisions += 1
            else:
                mode = again.mode
        for item in items:
            item.again()
    mood.note(raised=raised, refused=refused)
    yield from _one_by_one(items, engine)


def transaction(
    items: Sequence[Item], engine: Engine, mode: Mode, *, short: bool = False, judged: BaseException | None = None
) -> Script[int]:
    """One transaction; returns how many handlers raised. With `judged` nothing is called, as if handlers raised it."""
    pipelined = mode in (Mode.SWIFT, Mode.GUARDED)
    try:
        yield Begin(pipelined)
        yield from admit(items, engine, short=short)
        failures = yield from call_all(items, engine, mode, judged)
        if rows := settle.statements(items, engine, engine.clock.latest()):
            yield Execute(rows)
        yield Commit()
        losses.forget(items, engine)
        return failures
    except NeedsResultError as error:
        raise _AgainError(Mode.CAREFUL, error) from error
    except _AgainError:
        raise
    except psycopg.Error as error:
        raise _AgainError(Mode.CAREFUL if pipelined else Mode.SINGLE, error) from error
    except Exception as error:  # the engine's own; one command made it, and shall be the only one to suffer
        raise _AgainError(Mode.SINGLE, error) from error


def call_all(items: Sequence[Item], engine: Engine, mode: Mode, judged: BaseException | None = None) -> Script[int]:
    """Call the handlers of the admitted items, in order; returns how many raised and had used the connection before."""
    failures = 0
    stopped: dict[Address, Outcome] = {}
    savepoint = mode is not Mode.SWIFT
    for item in items:
        if stopped and (item.outcome is None or item.unresolved) and item.ordered and item.delivery.address in stopped:
            item.outcome = stopped[item.delivery.address]
        if item.outcome is None:
            known = judged or losses.verdict(item, engine)
            if known is not None:
                item.outcome = outcome_of(known, item, engine)
            else:
                try:
                    yield Call(item, savepoint)
                    item.outcome = DONE
                    continue
                except (NeedsResultError, GeneratorExit):
                    raise
                except BaseException as error:
                    if item.touched or mode is not Mode.SWIFT or _is_of_the_server(error):
                        _consider(error, mode)
                        failures += 1
                    item.drafts, item.run_items = [], []
                    item.outcome = outcome_of(error, item, engine)
        stops(item, stopped)
    return failures


def slower_mode(mode: Mode, error: BaseException) -> Mode:
    """The pipelined mode, or the careful one, in which to run again what ended so in `mode`."""
    if isinstance(error, _AgainError):
        return error.mode
    return (
        Mode.CAREFUL if mode is Mode.GUARDED or isinstance(error, (psycopg.Error, NeedsResultError)) else Mode.GUARDED
    )


def stop_followers(items: Sequence[Item]) -> None:
    """Whoever is behind a command that cannot run now does not run either.

    One that waits for a schema heads its key only once those before it are through, for they may fail and head it.
    """
    stopped: dict[Address, Outcome] = {}
    running: set[Address] = set()
    for item in items:
        address = item.delivery.address
        if address is None or not item.ordered:
            continue
        if address in stopped and (item.outcome is None or item.unresolved):
            item.outcome = stopped[address]
        elif item.outcome is None:
            running.add(address)
        elif item.unresolved and address in running:
            item.outcome = _NEXT
        stops(item, stopped)


def stops(item: Item, stopped: dict[Address, Outcome]) -> None:
    """Note what the outcome of an item means for the others of its key."""
    if not item.ordered or item.delivery.address is None:
        return
    outcome = item.outcome
    if outcome is BEYOND_LEDGER:
        return
    strict = item.handler is not None and item.handler.order == "strict" and item.command is not None
    if isinstance(outcome, Failed) or item.unresolved or (isinstance(outcome, Dead) and strict):
        stopped[item.delivery.address] = HELD
    elif isinstance(outcome, Busy):
        stopped[item.delivery.address] = outcome


def _consider(error: BaseException, mode: Mode) -> None:
    """Return if the exception is the handler's own and its savepoint undid what it had done."""
    overran = isinstance(error, OverrunError)  # what was under way when it was cancelled may have spoilt the pipeline
    if mode is Mode.SWIFT or (mode is Mode.GUARDED and overran):
        careful = overran or isinstance(error, psycopg.Error)
        raise _AgainError(Mode.CAREFUL if careful else Mode.GUARDED, error) from error
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, psycopg.Error) and (mode is Mode.GUARDED or isinstance(found, PASSING)):
            raise found
        found = found.__cause__ or found.__context__


def _is_of_the_server(error: BaseException) -> bool:
    found: BaseException | None = error
    while found is not None and not isinstance(found, psycopg.Error):
        found = found.__cause__ or found.__context__
    return found is not None


def unstorable(error: BaseException) -> bool:
    """Whether what is to be written cannot be, however often it is tried: bad values, or the engine's own error."""
    if not isinstance(error, psycopg.Error):
        return True
    data = (psycopg.DataError, errors.ProgramLimitExceeded)
    return isinstance(error, data) or (error.sqlstate is None and isinstance(error, psycopg.ProgrammingError))


def _one_by_one(items: Sequence[Item], engine: Engine) -> Script[None]:
    stopped: dict[Address, Outcome] = {}
    for item in items:
        address = item.delivery.address
        if stopped and item.ordered and address in stopped and isinstance(stopped[address], Busy):
            item.outcome = stopped[address]
            continue
        yield from single(item, engine)
        if isinstance(item.outcome, Busy):
            stops(item, stopped)


def single(item: Item, engine: Engine) -> Script[None]:
    """One command in a transaction of its own: whatever goes wrong now is about this command."""
    collisions = 0
    judged: BaseException | None = None
    while True:
        try:
            yield from transaction([item], engine, Mode.CAREFUL, short=True, judged=judged)
            return
        except _AgainError as again:
            yield Rollback()
            item.again()
            error = again.cause
        if isinstance(error, COLLISIONS) and collisions < _MOST_COLLISIONS:
            collisions += 1
        elif isinstance(error, PASSING) and item.delivery.stalls < _MOST_STALLS:
            item.delivery.stalls += 1
            item.outcome = Busy(_LOCKED_REST)
            return
        elif unstorable(error) and item.envelope is not None and (judged is not None or item.command is None):
            item.refuse("unstorable", describe(error))
        elif judged is None and item.handler is not None and item.command is not None:
            judged = error
        else:
            raise error
