"""From an exception to an outcome, by the handler's rules and its retry policy."""

from __future__ import annotations

import time
from datetime import datetime

from onceward_consumer.failures import Permanent, Transient, classify
from onceward_consumer.guard import GUARDED
from onceward_consumer.items import Engine, Item
from onceward_consumer.origins import origin
from onceward_consumer.outcomes import Dead, Discarded, Failed, Parked
from onceward_consumer.policy import GiveUp, next_delay
from onceward_consumer.redaction import describe
from onceward_schemas.errors import TransactionError


def outcome_of(error: BaseException, item: Item, engine: Engine) -> Failed | Dead | Discarded | Parked:
    """What the handler's exception means for its command.

    What would be one dead letter too many is parked, unless the handler itself decided that it dies.
    """
    handler = item.handler
    assert handler is not None
    where = origin(error, handler.function)
    now = engine.clock.latest()
    decided = False
    outcome: Failed | Dead | Discarded
    if isinstance(error, TransactionError):
        outcome = Dead("transaction_misuse", describe(error), where)
    else:
        match classify(error, handler.rules, now=now):
            case Discarded() as outcome:
                pass
            case Permanent() as verdict:
                outcome, decided = Dead(verdict.reason, describe(error), where), verdict.decided
            case Transient() as verdict:
                outcome = retried(item, verdict, describe(error), now, where)
    if not isinstance(outcome, Dead) or decided or engine.guard.admits(handler.type, item.id, time.monotonic()):
        return outcome
    return Parked(GUARDED)


def retried(item: Item, verdict: Transient, text: str, now: datetime, where: str | None = None) -> Failed | Dead:
    """Another attempt, or none: the command's attempts and its time are counted over all workers and restarts."""
    handler = item.handler
    assert handler is not None
    if item.first_failed_at is None:
        item.attempts_before = item.attempt - 1
    made = item.attempt - item.attempts_before
    delay = next_delay(handler.retry, made, item.first_failed_at, now, verdict.retry_after)
    if isinstance(delay, GiveUp):
        return Dead(delay.reason, text, where, cause=verdict.reason)
    return Failed(verdict.reason, text, delay, where)
