"""From an exception to an outcome, by the handler's rules and its retry policy."""

from __future__ import annotations

from datetime import datetime

from onceward_consumer.failures import Permanent, Transient, classify
from onceward_consumer.items import Item
from onceward_consumer.origins import origin
from onceward_consumer.outcomes import Dead, Discarded, Failed
from onceward_consumer.policy import GiveUp, next_delay
from onceward_consumer.redaction import describe
from onceward_schemas.errors import TransactionError


def outcome_of(error: BaseException, item: Item, now: datetime) -> Failed | Dead | Discarded:
    """What the handler's exception means for its command; `now` is the database's time."""
    handler = item.handler
    assert handler is not None
    where = origin(error, handler.function)
    if isinstance(error, TransactionError):
        return Dead("transaction_misuse", describe(error), where)
    verdict = classify(error, handler.rules, now=now)
    if isinstance(verdict, Discarded):
        return verdict
    text = describe(error)
    if isinstance(verdict, Permanent):
        return Dead(verdict.reason, text, where)
    return retried(item, verdict, text, now, where)


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
