"""The lifecycle that every loop has: `start`, `stop`, and a word on how it is."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Protocol, runtime_checkable

from onceward_runtime import events, log


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


@runtime_checkable
class Mortal(Protocol):
    """A service that can say that it ended although nobody stopped it. What it raised is its `error`, if it has one."""

    @property
    def ended(self) -> bool: ...


class Loop:
    """A service made of one function in a thread of its own. The function returns soon after `stopping` turns true.

    `alive` holds while the function calls `beat` (or `wait`) at least every `stall`.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[Loop], None],
        *,
        stall: timedelta = timedelta(seconds=60),
        drain: timedelta | None = None,
    ) -> None:
        self.name = name
        self._body = body
        self._stall_seconds = stall.total_seconds()
        self._drain_seconds = None if drain is None else drain.total_seconds()
        self._asked = threading.Event()
        self._thread: threading.Thread | None = None
        self._beat = time.monotonic()
        self._error: BaseException | None = None

    def start(self) -> None:
        """Start the thread; once only."""
        if self._thread is None and not self._asked.is_set():
            self.beat()
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ask the function to return and wait for it, at most for `drain` where that was given."""
        self._asked.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(self._drain_seconds)
            if self._thread.is_alive():
                log.emit(events.SERVICE_STOP_FAILED, service=self.name, error="still running after the drain time-out")

    def alive(self) -> bool:
        """Whether the thread runs and has shown a sign of life lately, or was stopped."""
        if self._thread is None or self._asked.is_set():
            return True
        return self._thread.is_alive() and time.monotonic() - self._beat < self._stall_seconds

    def ready(self) -> bool:
        """Whether the thread runs and is not stopping."""
        return self._thread is not None and not self._asked.is_set() and self.alive()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._asked.is_set()

    @property
    def ended(self) -> bool:
        """Whether the function returned or raised although nobody stopped it."""
        return (
            self._thread is not None
            and not self._thread.is_alive()
            and (self._error is not None or not self._asked.is_set())
        )

    @property
    def error(self) -> BaseException | None:
        """What the function raised."""
        return self._error

    def beat(self) -> None:
        """Show a sign of life."""
        self._beat = time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Sleep, and return early with True when asked to stop."""
        self.beat()
        asked = self._asked.wait(seconds)
        self.beat()
        return asked

    def _run(self) -> None:
        try:
            self._body(self)
        except BaseException as error:  # reported by run_until_signal, which ends the process
            self._error = error


def run_until_signal(services: Sequence[Service]) -> int:
    """Start `services` in order, wait for SIGTERM or SIGINT or for a service that died, and stop them in reverse.

    A second signal ends the process at once; nothing is lost by it, since what is unfinished is redelivered.
    Returns the exit code: 0 after a signal, 1 after a service died. Call it from the main thread.
    """
    started: list[Service] = []
    with _signals() as (asked, received):
        try:
            for service in services:
                if asked.is_set():
                    break
                started.append(service)
                service.start()
                log.emit(events.SERVICE_STARTED, service=service.name)
            while not asked.wait(0.1):
                if dead := _died(started):
                    log.emit(events.SERVICE_DIED, service=dead.name, error=getattr(dead, "error", None))
                    return 1
            log.emit(events.SERVICE_STOPPING, signal=received[0])
            return 0 if _stopped_all(started) else 1
        finally:
            _stopped_all(started)


def _died(services: Sequence[Service]) -> Service | None:
    return next((service for service in services if isinstance(service, Mortal) and service.ended), None)


def _stopped_all(services: list[Service]) -> bool:
    """Stop the services in reverse, and take them off the list. One that raises does not keep the others running."""
    clean = True
    while services:
        service = services.pop()
        since = time.monotonic()
        try:
            service.stop()
            log.emit(events.SERVICE_STOPPED, service=service.name, seconds=round(time.monotonic() - since, 3))
        except Exception as error:
            clean = False
            log.emit(events.SERVICE_STOP_FAILED, service=service.name, error=error)
    return clean


@contextmanager
def _signals() -> Iterator[tuple[threading.Event, list[str]]]:
    """An event that the first SIGTERM or SIGINT sets, and its name. A second one ends the process."""
    asked = threading.Event()
    received: list[str] = []
    ordinary = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(number: int, _frame: object) -> None:
        for each in ordinary:
            signal.signal(each, signal.SIG_DFL)
        received.append(signal.Signals(number).name)
        asked.set()  # and nothing more: a log line here could meet a lock that the interrupted code holds

    for number in ordinary:
        signal.signal(number, on_signal)
    try:
        yield asked, received
    finally:
        for number, handler in ordinary.items():
            signal.signal(number, handler)
