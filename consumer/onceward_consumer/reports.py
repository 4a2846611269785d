"""What is told of a finished group: counters by outcome, and a log line for each command that did not simply end well."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

from prometheus_client import Histogram

from onceward_consumer.items import Engine, Item
from onceward_consumer.outcomes import BEYOND_LEDGER, Busy, Dead, Discarded, Done, Duplicate, Failed, Parked, Round
from onceward_runtime import events, log

_NAMES = {
    Done: "done",
    Failed: "retry",
    Dead: "dead",
    Discarded: "discarded",
    Duplicate: "duplicate",
    Parked: "parked",
    Round: "round",
    Busy: "busy",
}


def report(items: Sequence[Item], engine: Engine) -> None:
    """Count and log what became of a group whose transaction is committed."""
    counts: Counter[tuple[str, str, str]] = Counter()
    now_ms, now = time.time() * 1000, time.perf_counter()
    for item in items:
        outcome = item.outcome
        name = item.envelope.type if item.envelope is not None and item.handler is not None else "unknown"
        counts[item.delivery.lane, name, _NAMES[type(outcome)]] += 1
        if item.started:
            _measure(item, name, now_ms, now)
        if type(outcome) is not Done or item.crashed:
            _tell(item, name, engine)
    for labels, count in counts.items():
        events.COMMANDS.labels(*labels).inc(count)


def _measure(item: Item, name: str, now_ms: float, now: float) -> None:
    """How long it took, and since when it had been asked for; for each command that was called, whatever became of it."""
    handler_seconds, start_seconds, done_seconds = _histograms(item.delivery.lane, name)
    handler_seconds.observe(item.seconds)
    if item.id.version != 7:
        return
    since_ms = item.since_ms
    if item.attempt == 1:
        start_seconds.observe(max(0.0, (now_ms - since_ms) / 1000 - (now - item.started)))
    if type(item.outcome) is Done:
        done_seconds.observe(max(0.0, now_ms - since_ms) / 1000)


@cache
def _histograms(lane: str, name: str) -> tuple[Histogram, Histogram, Histogram]:
    """Looked up once, for looking up costs more than observing."""
    measured = (events.HANDLER_SECONDS, events.START_SECONDS, events.DONE_SECONDS)
    first, second, third = (histogram.labels(lane, name) for histogram in measured)
    return first, second, third


def _tell(item: Item, name: str, engine: Engine) -> None:
    outcome = item.outcome
    fields: dict[str, Any] = {
        "command_id": item.id,
        "type": name,
        "key": item.delivery.key_text,
        "attempt": item.attempt,
        "lane": item.delivery.lane,
        "group": engine.group,
    }
    if item.crashed:
        log.emit(events.COMMAND_CRASHED, **fields)
    match outcome:
        case Failed():
            events.RETRIES.labels(item.delivery.lane, name, outcome.reason).inc()
            log.emit(
                events.COMMAND_RETRY,
                **fields,
                reason=outcome.reason,
                error=outcome.error,
                where=outcome.where,
                delay_seconds=outcome.delay.total_seconds(),
            )
        case Dead():
            events.DEAD_LETTERS.labels(item.delivery.lane, name, outcome.reason).inc()
            log.emit(events.COMMAND_DEAD, **fields, reason=outcome.reason, error=outcome.error, where=outcome.where)
            if item.command is None and outcome is not BEYOND_LEDGER:
                log.emit(
                    events.RECORD_UNREADABLE,
                    topic=item.delivery.topic,
                    partition=item.delivery.partition,
                    offset=item.delivery.offset,
                    group=engine.group,
                    reason=outcome.reason,
                    error=outcome.error,
                )
        case Discarded():
            log.emit(events.COMMAND_DISCARDED, **fields, reason=outcome.reason)
        case Duplicate():
            events.DUPLICATES.labels(item.delivery.lane, outcome.reason).inc()
            log.emit(events.COMMAND_DUPLICATE, **fields, reason=outcome.reason)
        case Parked():
            log.emit(events.COMMAND_PARKED, **fields, reason=outcome.reason)
        case _:
            pass
