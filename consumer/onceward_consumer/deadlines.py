"""Ends asynchronous calls whose time is over: one timer for all that run on an event loop, for one each costs more than many
calls do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

_TICK_SECONDS = 0.02


class _Call:
    __slots__ = ("expired", "task", "until")

    def __init__(self, task: asyncio.Task[Any], until: float) -> None:
        self.task = task
        self.until = until
        self.expired = False


class _Watch:
    """The calls of one event loop. It looks at them a few times in a tenth of a second, while there are any."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.calls: set[_Call] = set()
        self._ticking = False

    def add(self, call: _Call) -> None:
        self.calls.add(call)
        if not self._ticking:
            self._ticking = True
            self.loop.call_later(_TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        now = self.loop.time()
        for call in self.calls:
            if call.until <= now and not call.expired:
                call.expired = True
                call.task.cancel()
        self._ticking = bool(self.calls)
        if self._ticking:
            self.loop.call_later(_TICK_SECONDS, self._tick)


_local = threading.local()


async def within(seconds: float, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the function's coroutine returns; it is cancelled once `seconds` are over, a moment later at most.

    Raises: TimeoutError where it ended by that; and what it raises.
    """
    loop = asyncio.get_running_loop()
    watch: _Watch | None = getattr(_local, "watch", None)
    if watch is None or watch.loop is not loop:
        watch = _local.watch = _Watch(loop)
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    call = _Call(task, loop.time() + seconds)
    watch.add(call)
    try:
        return await function(*arguments)
    except asyncio.CancelledError as error:
        if call.expired and task.cancelling() <= before + 1:  # nobody else cancelled it as well
            raise ExpiredError from error
        raise
    finally:
        watch.calls.discard(call)
        if call.expired:
            task.uncancel()


class ExpiredError(TimeoutError):
    """The time of a call was over, by `within`."""
