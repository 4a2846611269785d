"""What is told of a finished group: counters by outcome, and a log line for each command that did not simply end well."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from onceward_consumer.items import Engine, Item
from onceward_consumer.outcomes import Busy, Dead, Discarded, Done, Duplicate, Failed, Parked, Round
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
    now_ms = time.time() * 1000
    for item in items:
        outcome = item.outcome
        name = item.envelope.type if item.envelope is not None and item.handler is not None else "unknown"
        counts[item.delivery.lane, name, _NAMES[type(outcome)]] += 1
        if type(outcome) is not Done:
            _tell(item, name, engine)
    for labels, count in counts.items():
        events.COMMANDS.labels(*labels).inc(count)
    ran = next((item for item in items if type(item.outcome) is Done), None)
    if ran is not None and ran.envelope is not None:
        labels_of_type = (ran.delivery.lane, ran.envelope.type)
        events.HANDLER_SECONDS.labels(*labels_of_type).observe(ran.seconds)
        if ran.id.version == 7:
            events.DONE_SECONDS.labels(*labels_of_type).observe(max(0.0, now_ms - (ran.id.int >> 80)) / 1000)


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
    match outcome:
        case Failed():
            events.RETRIES.labels(item.delivery.lane, name, outcome.reason).inc()
            log.emit(
                events.COMMAND_RETRY,
                **fields,
                reason=outcome.reason,
                error=outcome.error,
                delay_seconds=outcome.delay.total_seconds(),
            )
        case Dead():
            events.DEAD_LETTERS.labels(item.delivery.lane, name, outcome.reason).inc()
            log.emit(events.COMMAND_DEAD, **fields, reason=outcome.reason, error=outcome.error)
            if item.command is None:
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
