"""What is told of a finished group: counters by outcome, and a log line for each command that did not simply end well."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from prometheus_client import Histogram

from onceward_consumer.handlers import Handler
from onceward_consumer.items import Engine, Item
from onceward_consumer.outcomes import (
    BEYOND_LEDGER,
    Busy,
    Dead,
    Discarded,
    Done,
    Duplicate,
    Failed,
    Parked,
    Round,
)
from onceward_runtime import events, log
from onceward_runtime.observations import observe_all

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
    for (lane, name), some in _by_type(items).items():
        for kind, count in Counter([type(item.outcome) for item in some]).items():
            events.COMMANDS.labels(lane, name, _NAMES[kind]).inc(count)
            if kind is Done:
                engine.guard.succeeded(name, count, time.monotonic())
        if called := [item for item in some if item.started]:
            _measure(called, lane, name)
    for item in items:
        if type(item.outcome) is not Done or item.crashed:
            _tell(item, _name(item), engine)


def tell_guard(group: str) -> Callable[[str, bool], None]:
    """What is told when a type's dead letters begin to be held back, and when that is over."""

    def tell(type_name: str, tripped: bool) -> None:
        events.DEAD_LETTERS_GUARDED.labels(group, type_name).set(tripped)
        log.emit(events.GUARD_TRIPPED if tripped else events.GUARD_ENDED, group=group, type=type_name)

    return tell


def _by_type(items: Sequence[Item]) -> dict[tuple[str, str], list[Item]]:
    """The items of each lane and type; most often there is one, and neighbours are alike."""
    found: dict[tuple[str, str], list[Item]] = {}
    some: list[Item] = []
    lane: str | None = None
    handler: Handler | None = None
    for item in items:
        if item.delivery.lane is not lane or item.handler is not handler or handler is None or item.envelope is None:
            lane, handler = item.delivery.lane, item.handler if item.envelope is not None else None
            some = found.setdefault((lane, _name(item)), [])
        some.append(item)
    return found


def _name(item: Item) -> str:
    return item.handler.type if item.envelope is not None and item.handler is not None else "unknown"


def _measure(items: Sequence[Item], lane: str, name: str) -> None:
    """How long they took, and since when they had been asked for; for each that was called, whatever became of it."""
    handler_seconds, start_seconds, done_seconds = _histograms(lane, name)
    now_ms, now = time.time() * 1000, time.perf_counter()
    aged = [(item, (now_ms - item.since_ms) / 1000) for item in items if item.id.int >> 76 & 15 == 7]
    observe_all(handler_seconds, [item.seconds for item in items])
    observe_all(start_seconds, [max(0.0, age - now + item.started) for item, age in aged if item.attempt == 1])
    observe_all(done_seconds, [max(0.0, age) for item, age in aged if type(item.outcome) is Done])


@cache
def _histograms(lane: str, name: str) -> tuple[Histogram, Histogram, Histogram]:
    """Looked up once, for looking up costs more than observing."""
    measured = (events.HANDLER_SECONDS, events.START_SECONDS, events.DONE_SECONDS)
    first, second, third = (histogram.labels(lane, name) for histogram in measured)
    return first, second, third


def fields(item: Item, engine: Engine) -> dict[str, Any]:
    """What a log line says of a command."""
    return {
        "command_id": item.id,
        "type": _name(item),
        "key": item.delivery.key_text,
        "attempt": item.attempt,
        "lane": item.delivery.lane,
        "group": engine.group,
    }


def _tell(item: Item, name: str, engine: Engine) -> None:
    outcome = item.outcome
    said = fields(item, engine)
    if item.crashed:
        log.emit(events.COMMAND_CRASHED, **said)
    match outcome:
        case Failed():
            events.RETRIES.labels(item.delivery.lane, name, outcome.reason).inc()
            log.emit(
                events.COMMAND_RETRY,
                **said,
                reason=outcome.reason,
                error=outcome.error,
                where=outcome.where,
                delay_seconds=outcome.delay.total_seconds(),
            )
        case Dead():
            events.DEAD_LETTERS.labels(item.delivery.lane, name, outcome.reason).inc()
            log.emit(events.COMMAND_DEAD, **said, reason=outcome.reason, error=outcome.error, where=outcome.where)
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
            log.emit(events.COMMAND_DISCARDED, **said, reason=outcome.reason)
        case Duplicate():
            events.DUPLICATES.labels(item.delivery.lane, outcome.reason).inc()
            log.emit(events.COMMAND_DUPLICATE, **said, reason=outcome.reason)
        case Parked():
            log.emit(events.COMMAND_PARKED, **said, reason=outcome.reason)
        case _:
            pass
