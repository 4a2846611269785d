"""A thread that does one step after another on a connection of its own, and outlives the database's absence."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from onceward_runtime import events, log, postgres
from onceward_runtime.settings import Settings
from onceward_schemas.errors import DatabaseError

Step: TypeAlias = Callable[[psycopg.Connection[Any]], float]
"""Does what is due and returns the seconds until there may be more; runs on an autocommit connection."""

_BACK_OFF_SECONDS = (0.1, 0.3, 1.0, 2.0, 5.0)


class DatabaseLoop:
    """Calls `step` until stopped; sleeps between as long as it says, or until `wake` or a notification on `channel`.

    A step that raises is tried again on a new connection after a growing pause. Steps must therefore be transactions.
    """

    def __init__(
        self,
        name: str,
        database: Settings | str,
        step: Step,
        *,
        channel: str | None = None,
        limits: postgres.SessionLimits | None = None,
        stall: timedelta = timedelta(seconds=60),
    ) -> None:
        self.name = name
        self._database = database
        self._step = step
        self._channel = channel
        self._limits = limits or postgres.SessionLimits()
        self._stall_seconds = stall.total_seconds()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failures = 0
        self._lost_at: float | None = None
        self._expected_by = 0.0
        self._pipe_lock = threading.Lock()
        self._wake_read, self._wake_write = -1, -1

    def start(self) -> None:
        """Connect, then run. Raises: DatabaseError when the database does not answer."""
        if self._thread is not None:
            return
        connection = self._connect()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._expected_by = time.monotonic() + self._stall_seconds
        self._thread = threading.Thread(target=self._run, args=(connection,), name=f"onceward-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the step in progress finish, and return when the thread has ended."""
        self._stopping.set()
        if self._thread is None:
            return
        self.wake()
        self._thread.join()
        with self._pipe_lock:
            for end in (self._wake_read, self._wake_write):
                if end >= 0:
                    os.close(end)
            self._wake_read = self._wake_write = -1

    def wake(self) -> None:
        """End the present sleep: there may be something to do."""
        with self._pipe_lock:  # after stop() the number may be that of another file
            if self._wake_write >= 0:
                with contextlib.suppress(BlockingIOError):  # a full pipe wakes it too
                    os.write(self._wake_write, b"!")

    def alive(self) -> bool:
        """Whether the thread runs and no step takes unreasonably long, or was stopped."""
        if self._thread is None or self._stopping.is_set():
            return True
        return self._thread.is_alive() and time.monotonic() < self._expected_by

    def ready(self) -> bool:
        """Whether the last step succeeded."""
        return self._thread is not None and not self._stopping.is_set() and self.alive() and self._failures == 0

    @property
    def ended(self) -> bool:
        """Whether the thread is gone although nobody stopped it."""
        return self._thread is not None and not self._thread.is_alive() and not self._stopping.is_set()

    def _connect(self) -> psycopg.Connection[Any]:
        connection = postgres.connect(
            self._database, application_name=f"onceward {self.name}", autocommit=True, limits=self._limits
        )
        if self._channel is not None:
            connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
        return connection

    def _run(self, first: psycopg.Connection[Any]) -> None:
        connection: psycopg.Connection[Any] | None = first
        try:
            while not self._stopping.is_set():
                try:
                    connection = connection or self._connect()
                    pause = self._step(connection)
                    self._recovered()
                    self._sleep(pause, connection)
                except Exception as error:
                    self._failed(error, connection)
                    if connection is not None:
                        connection.close()
                        connection = None
                    self._sleep(_BACK_OFF_SECONDS[min(self._failures, len(_BACK_OFF_SECONDS)) - 1], None)
        finally:
            if connection is not None:
                connection.close()

    def _failed(self, error: Exception, connection: psycopg.Connection[Any] | None) -> None:
        self._failures += 1
        lost = (
            connection is None
            or connection.closed
            or isinstance(error, DatabaseError | psycopg.OperationalError | psycopg.InterfaceError)
        )
        if not lost:
            log.emit(events.SERVICE_STEP_FAILED, service=self.name, error=error)
        elif self._lost_at is None:
            self._lost_at = time.monotonic()
            log.emit(events.DATABASE_LOST, service=self.name, error=error)

    def _recovered(self) -> None:
        self._failures = 0
        if self._lost_at is not None:
            log.emit(events.DATABASE_BACK, service=self.name, seconds=round(time.monotonic() - self._lost_at, 3))
            self._lost_at = None

    def _sleep(self, seconds: float, connection: psycopg.Connection[Any] | None) -> None:
        self._expected_by = time.monotonic() + max(seconds, 0.0) + self._stall_seconds
        if seconds <= 0 or self._stopping.is_set():
            return
        poll = select.poll()
        poll.register(self._wake_read, select.POLLIN)
        if connection is not None and self._channel is not None:
            poll.register(connection.fileno(), select.POLLIN)
        readable = [end for end, _ in poll.poll(math.ceil(seconds * 1000))]
        if self._wake_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
        if connection is not None and connection.fileno() in readable:
            for _ in connection.notifies(timeout=0):
                pass
