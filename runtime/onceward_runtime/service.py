"""The lifecycle that every loop has: `start`, `stop`, and a word on how it is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from typing import Protocol


class Service(Protocol):
    """A loop with a lifecycle. Stopping twice, or before the start, is fine."""

    name: str

    def start(self) -> None:
        """Begin; returns once the loop runs. Raises an OncewardError when it cannot."""

    def stop(self) -> None:
        """Finish what has begun, within the drain time-out, and return when nothing runs any more."""

    def alive(self) -> bool:
        """Liveness: whether the loop makes progress, or has nothing to do."""

    def ready(self) -> bool:
        """Readiness: whether it can do its work now."""


def run_until_signal(services: Sequence[Service]) -> int:
    """Start `services` in order, wait for SIGTERM or SIGINT or for a service that died, and stop them in reverse.

    A second signal ends the process at once; nothing is lost by it, since what is unfinished is redelivered.
    Returns the exit code: 0 after a signal, 1 after a service died. Call it from the main thread.
    """
    asked = threading.Event()

    def on_signal(number: int, _frame: object) -> None:
        if asked.is_set():
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    started: list[Service] = []
    try:
        for service in services:
            started.append(service)
            service.start()
        while not asked.wait(1.0):
            if dead := [s for s in started if has_ended(s)]:
                del dead
                return 1
        return 0
    finally:
        for service in reversed(started):
            service.stop()


def has_ended(service: Service) -> bool:
    """Whether a service's thread is gone although nobody stopped it."""
    return bool(getattr(service, "ended", False))
