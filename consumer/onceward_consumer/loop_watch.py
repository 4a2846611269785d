"""Watches that the event loop turns. A blocking call in one asynchronous handler holds up all the others: it is named."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import FrameType
from typing import Final

from onceward_consumer.handlers import Handler, call_within
from onceward_consumer.origins import place
from onceward_runtime import events, log

_TELL_SECONDS: Final = 60.0
_LATE_SECONDS: Final = 0.2


class LoopWatch:
    """A thread that asks the loop for a sign of life, and looks at its stack where none comes within `after` seconds."""

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: int, group: str, after: float) -> None:
        """`thread` is the identity of the loop's thread."""
        self._loop = loop
        self._loop_thread = thread
        self._group = group
        self._after = after
        self._turned = threading.Event()
        self._stopping = threading.Event()
        self._told: dict[tuple[str, str | None], float] = {}
        self._thread = threading.Thread(target=self._run, name="onceward-loop-watch", daemon=True)
        self._asked_at: float | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._stopping.set()
        self._turned.set()

    @property
    def silent_seconds(self) -> float:
        """For how long the loop has not given a sign that was asked for."""
        asked = self._asked_at
        return 0.0 if asked is None else time.monotonic() - asked

    def _run(self) -> None:
        while not self._stopping.wait(self._after / 2):
            self._turned.clear()
            self._asked_at = asked = time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._turned.set)
            except RuntimeError:  # it is closed
                return
            if not self._turned.wait(self._after) and time.monotonic() - asked < self._after + _LATE_SECONDS:
                self._look()  # else the whole process stood still
            while not self._stopping.is_set() and not self._turned.wait(1.0):
                pass
            self._asked_at = None

    def _look(self) -> None:
        call = call_of(sys._current_frames().get(self._loop_thread))
        if call is None or self._turned.wait(self._after / 4):
            return
        frame = sys._current_frames().get(self._loop_thread)
        if call_of(frame) is not call:
            return  # it is not the one call that takes long
        handler: Handler = call.f_locals["handler"]
        where = place(frame, handler.function)
        events.LOOP_BLOCKED.labels(handler.type).inc()
        now = time.monotonic()
        if now - self._told.get((handler.type, where), -_TELL_SECONDS) < _TELL_SECONDS:
            return
        self._told[handler.type, where] = now
        log.emit(events.HANDLER_BLOCKS, type=handler.type, group=self._group, where=where, seconds=self._after)


def call_of(frame: FrameType | None) -> FrameType | None:
    """The frame that calls an asynchronous handler in a thread's stack, if it is in one."""
    while frame is not None and frame.f_code is not call_within.__code__:
        frame = frame.f_back
    return frame
