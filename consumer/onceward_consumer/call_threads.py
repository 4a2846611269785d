"""Threads for calls of synchronous external handlers. They never keep a process from ending, and a hanging one is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Final

_IDLE_SECONDS: Final = 60.0

Job = tuple["Future[None]", Callable[[], None]]


class CallThreads:
    """As many threads as there are calls; one that is free takes the next. The caller bounds them.

    >>> threads = CallThreads("doctest")
    >>> threads.submit(lambda: None).result(5) is None
    True
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._lock = threading.Lock()
        self._free = 0

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Begin a call at once."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            start = self._free == 0
            if not start:
                self._free -= 1
                self._jobs.put((future, call))
        if start:
            threading.Thread(target=self._work, args=((future, call),), name=self._name, daemon=True).start()
        return future

    def _work(self, job: Job | None) -> None:
        while job is not None:
            future, call = job
            try:
                call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)
            del future, call  # an idle thread keeps nothing alive
            job = self._next()

    def _next(self) -> Job | None:
        with self._lock:
            self._free += 1
        try:
            return self._jobs.get(timeout=_IDLE_SECONDS)
        except Empty:
            with self._lock:
                if self._free > 0:  # nobody counts on this thread
                    self._free -= 1
                    return None
            return self._jobs.get()
