"""A worker's lease in onceward.workers, the reading of the database's clock, and the sweep for keys to be drained."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

import psycopg

from onceward_consumer.gauges import Gauges
from onceward_consumer.guarded import Guarded
from onceward_consumer.items import Engine
from onceward_consumer.parked import requeue_resolved
from onceward_consumer.release import Wakeups
from onceward_runtime import postgres
from onceward_runtime.settings import Settings
from onceward_runtime.sql import query
from onceward_schemas.errors import DatabaseError

_log = logging.getLogger("onceward.consumer")
_BEAT: Final = query("onceward_consumer", "worker_beat")
_DIED: Final = query("onceward_consumer", "workers_died")
_END: Final = query("onceward_consumer", "worker_end")
_WAITING: Final = query("onceward_consumer", "release_waiting")
_SWEEP_SECONDS: Final = 1.0
_COUNT_SECONDS: Final = 10.0
_REQUEUE_SECONDS: Final = 30.0


class Heartbeat:
    """One thread with a connection of its own. Handlers cannot hold it up."""

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        lease: timedelta,
        wakeups: Wakeups,
        *,
        host: str,
        pid: int,
        gauges: Gauges,
        on_death: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_death` is called for minutes after a worker of the group has let its lease run out."""
        self._engine = engine
        self._settings = settings
        self._lease = lease
        self._wakeups = wakeups
        self._host = host
        self._pid = pid
        self._gauges = gauges
        self._on_death = on_death
        self._draining = False
        self._stopping = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="onceward-heartbeat", daemon=True)
        self.leased_until = 0.0
        """On the monotonic clock: until then no other worker takes over what this one runs."""
        self.failure: BaseException | None = None
        """What ended it although nobody stopped it."""

    @property
    def healthy(self) -> bool:
        """Whether the lease is valid."""
        return time.monotonic() < self.leased_until

    def start(self) -> None:
        """Register the worker.

        Raises: DatabaseError.
        """
        self._connection = self._connect()
        self._beat(self._connection)
        self._thread.start()

    def drain(self) -> None:
        """Let others see that the worker is about to leave."""
        self._draining = True

    def stop(self, *, keep_lease: bool = False) -> None:
        """Give the lease back, or let it run out where something of this worker's runs on."""
        self._stopping.set()
        if self._thread.ident is None:
            return
        self._thread.join(5)
        if keep_lease:
            return
        try:
            with self._connect() as connection:
                connection.execute(_END, (self._engine.incarnation,))
        except (psycopg.Error, DatabaseError):
            pass  # it runs out by itself

    def _run(self) -> None:
        try:
            self._beat_and_sweep()
        except BaseException as error:
            self.failure = error
            _log.exception("The heartbeat ended: %s", error)

    def _beat_and_sweep(self) -> None:
        every = min(5.0, self._lease.total_seconds() / 4)
        beat_at = time.monotonic() + every
        requeue_at = count_at = time.monotonic()
        guarded = Guarded(self._engine)
        while not self._stopping.wait(_SWEEP_SECONDS):
            self._gauges.memory()
            try:
                if self._connection is None or self._connection.closed:
                    self._connection = self._connect()
                if time.monotonic() >= beat_at or not self.healthy:
                    self._beat(self._connection)
                    beat_at = time.monotonic() + every
                    died = self._connection.execute(_DIED, (self._engine.group, self._engine.incarnation)).fetchone()
                    if died is not None and died[0]:
                        self._on_death()
                if time.monotonic() >= requeue_at:
                    requeue_at = time.monotonic() + _REQUEUE_SECONDS
                    requeue_resolved(self._connection, self._engine)
                guarded.requeue(self._connection, time.monotonic())
                if time.monotonic() >= count_at:
                    count_at = time.monotonic() + _COUNT_SECONDS
                    self._gauges.database(self._connection)
                row = self._connection.execute(_WAITING, (self._engine.group,)).fetchone()
                if row is not None and row[0]:
                    self._wakeups.set()
            except (psycopg.Error, DatabaseError):
                self._close()
        self._close()

    def _beat(self, connection: psycopg.Connection[Any]) -> None:
        asked = time.monotonic()
        row = connection.execute(
            _BEAT,
            (
                self._engine.incarnation,
                self._engine.group,
                self._host,
                self._pid,
                self._engine.code_version,
                self._lease,
                self._draining,
            ),
        ).fetchone()
        assert row is not None
        self._engine.clock.set(row[0], asked, time.monotonic())
        self.leased_until = asked + self._lease.total_seconds()

    def _connect(self) -> psycopg.Connection[Any]:
        limits = postgres.SessionLimits(statement_timeout=timedelta(seconds=5), lock_timeout=timedelta(seconds=5))
        name = f"onceward heartbeat {self._engine.group}"
        return postgres.connect(self._settings, application_name=name, autocommit=True, limits=limits)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
