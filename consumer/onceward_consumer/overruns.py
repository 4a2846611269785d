"""Calls in threads that outlive their limit. A thread cannot be ended, so the call is given up: its session is ended, its
thread left to itself, and its command judged by another. What it still does reaches no database and counts for nothing.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from onceward_consumer.failures import OverrunError
from onceward_consumer.handlers import Handler
from onceward_consumer.items import Engine, Item
from onceward_consumer.origins import place
from onceward_consumer.outcomes import Busy
from onceward_consumer.reports import fields
from onceward_runtime import events, log

_GRACE_SECONDS: Final = 5.0
"""A call without a max_runtime is given up so long after PostgreSQL has ended its transaction."""
_FROZEN_SECONDS: Final = 1.0


class AbandonedError(BaseException):
    """Raised in a thread whose call was given up, once the handler returns: it has nothing to do here any more."""


class Stopwatch:
    """How long a call has run, without the time for which the whole process stood still: no handler answers for that.

    >>> watch = Stopwatch(every=1.0, now=100.0)
    >>> watch.turned(101.0)
    >>> watch.turned(110.0)
    >>> watch.ran(since=100.5, now=110.5)
    2.0
    """

    def __init__(self, every: float, now: float) -> None:
        self._every = every
        self._last = now
        self._gaps: deque[tuple[float, float]] = deque(maxlen=100)

    def turned(self, now: float) -> None:
        """The watch looks, as it wants to do each `every` seconds."""
        late = now - self._last - self._every
        if late > _FROZEN_SECONDS:
            self._gaps.append((now, late))
        self._last = now

    def ran(self, since: float, now: float) -> float:
        """Seconds that a call has run that began at `since`."""
        return now - since - sum(seconds for at, seconds in self._gaps if at > since)


def limit_of(handler: Handler, engine: Engine) -> tuple[float, OverrunError]:
    """How many seconds a transactional call in a thread may take, and what it is judged by when it takes longer."""
    longest = longest_seconds(engine)
    if handler.max_runtime is not None and (seconds := handler.max_runtime.total_seconds()) < longest:
        return seconds, too_long(handler)
    return longest, OverrunError("transaction_timeout", "It runs longer than PostgreSQL lets a transaction last.")


def longest_seconds(engine: Engine) -> float:
    """So long nothing that has a transaction can take: PostgreSQL has ended it before."""
    return engine.transaction_timeout.total_seconds() + _GRACE_SECONDS


def too_long(handler: Handler) -> OverrunError:
    """What a call is judged by that outlived its handler's max_runtime."""
    return OverrunError("max_runtime", f"It ran longer than its max_runtime, {handler.max_runtime}.")


def overdue(calls: list[Sequence[Item]], engine: Engine, watch: Stopwatch, now: float) -> Sequence[Item] | None:
    """Give up the call that a thread is in, if it is over its limit. From then on the thread's word does not count.

    A command that was alone in the call is judged by that; of several each is called alone, to find out whose doing it was.
    """
    try:
        items = calls[-1]
    except IndexError:
        return None
    first = items[0]
    assert first.handler is not None
    seconds, error = limit_of(first.handler, engine)
    if not first.started or watch.ran(first.started, now) <= seconds:
        return None
    try:
        calls.remove(items)  # either this thread or the call's own takes it off the list
    except ValueError:
        return None
    for item in items:
        item.outcome = Busy(engine.lock_timeout)  # the context is over with that
        if len(items) == 1:
            engine.given_up[item.id] = item.attempt, error
        else:
            engine.losses[item.id] = engine.losses.get(item.id, 0) + 1
    return items


def tell(item: Item, engine: Engine, thread: int | None) -> str | None:
    """Log and count a call that was given up; returns where in the service's code its thread is."""
    handler = item.handler
    assert handler is not None
    frame = sys._current_frames().get(thread) if thread is not None else None
    where = place(frame, handler.function) if frame is not None else None
    events.ABANDONED_CALLS.labels(handler.type).inc()
    log.emit(events.HANDLER_ABANDONED, **fields(item, engine), where=where, seconds=elapsed(item))
    return where


def elapsed(item: Item) -> float:
    """Seconds since its call began."""
    return time.perf_counter() - item.started
