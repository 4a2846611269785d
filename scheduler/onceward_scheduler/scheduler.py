"""The loop that turns due ticks into commands, for the partitions that this process leads.

It sleeps until the next tick is due. A crash at any instruction loses no tick and doubles none: what was not committed is
still due, and what was committed is unique.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, timedelta
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import errors

from onceward_consumer.app import App
from onceward_producer.rows import Encoder
from onceward_runtime import events, log, postgres
from onceward_runtime.database_loop import DatabaseLoop
from onceward_runtime.postgres import SessionLimits
from onceward_runtime.settings import Settings
from onceward_scheduler.definitions import Definition, definitions, redeclare, register
from onceward_scheduler.emission import Emitted, emit_all, read_due, seconds_until_due, take_epoch
from onceward_scheduler.functions import Functions
from onceward_scheduler.history import FORGET_BATCH, forget
from onceward_scheduler.leadership import Leadership

_BATCH = 500
_LONGEST_SLEEP = 5.0
_REDECLARE_SECONDS = 30.0
_SOON = 0.1
_FORGET_SECONDS = 3600.0
CHANNEL = "onceward_schedules"
"""Notify it when a schedule was changed and may be due."""
_LIMITS = SessionLimits(
    lock_timeout=timedelta(seconds=2),
    statement_timeout=timedelta(seconds=10),
    idle_in_transaction_session_timeout=timedelta(seconds=3),
    client_connection_check_interval=timedelta(seconds=2),
)


class Scheduler:
    """A service: leads the partitions of its application's schedules that Kafka gives it."""

    name = "scheduler"

    def __init__(self, app: App, codec: Encoder, settings: Settings) -> None:
        """Raises: AppError for a rule that cannot be read."""
        self._app = app.name
        self._definitions: Mapping[str, Definition] = definitions(app)
        self._ids = list(self._definitions)
        self._settings = settings
        self._incarnation = uuid4()
        self._loop = DatabaseLoop(self.name, settings, self._step, channel=CHANNEL, limits=_LIMITS)
        self._leadership = Leadership(app.name, settings, self._loop.wake)
        self._epochs: dict[int, int] = {}
        self._tenures: dict[int, int] = {}
        self._functions = Functions(app.name, codec, self._loop.wake)
        self._declared_at = 0.0
        self._forget_at = 0.0

    def start(self) -> None:
        """Write the declarations down, then run. Raises: BrokerError, DatabaseError."""
        partitions = self._leadership.partitions()
        with (
            postgres.translated(),
            postgres.connect(self._settings, application_name="onceward scheduler") as connection,
        ):
            for gone in register(connection, self._app, self._definitions, partitions):
                log.emit(events.SCHEDULE_UNDECLARED, app=self._app, schedule=gone)
        self._declared_at = time.monotonic()
        self._loop.start()
        self._leadership.start()

    def stop(self) -> None:
        """Let the transaction in progress end, then give the partitions to others."""
        self._loop.stop()
        self._leadership.stop()
        self._functions.stop()

    def alive(self) -> bool:
        """Whether both threads go round."""
        return self._loop.alive() and self._leadership.alive()

    def ready(self) -> bool:
        """Whether it emits ticks, or stands by for it."""
        return self._loop.ready() and self._leadership.ready()

    @property
    def ended(self) -> bool:
        """Whether one of the threads died."""
        return self._loop.ended or self._leadership.ended

    @property
    def error(self) -> BaseException | None:
        """What ended it."""
        return self._leadership.error

    def _step(self, connection: psycopg.Connection[Any]) -> float:
        self._declare(connection)
        self._forget(connection)
        all_led = self._take_over(connection)
        if not self._epochs or not self._ids:
            return _LONGEST_SLEEP if all_led else _SOON
        known = self._functions.free(self._ids)
        due = read_due(connection, self._app, self._epochs, known, _BATCH)
        planned = self._functions.plan(due, self._definitions)
        decided = 0
        for emitted in emit_all(connection, self._app, dict(self._epochs), planned):
            decided += len(emitted.ticks)
            self._report(emitted)
        if due and not decided:  # somebody is changing them, or leads them now
            return _SOON
        if len(due) == _BATCH:
            return 0.0
        pause = seconds_until_due(connection, self._app, self._epochs, self._functions.free(self._ids))
        longest = _LONGEST_SLEEP if all_led else _SOON
        return longest if pause is None else min(max(pause, 0.0), longest)

    def _declare(self, connection: psycopg.Connection[Any]) -> None:
        """Now and then contradict a process with older code that said they were gone."""
        if time.monotonic() - self._declared_at > _REDECLARE_SECONDS:
            redeclare(connection, self._app, self._definitions)
            self._declared_at = time.monotonic()

    def _forget(self, connection: psycopg.Connection[Any]) -> None:
        """Hourly delete old ticks; between two batches ticks are emitted."""
        if time.monotonic() < self._forget_at:
            return
        if size := forget(connection):
            log.emit(events.TICKS_FORGOTTEN, size=size)
        if size < FORGET_BATCH:
            self._forget_at = time.monotonic() + _FORGET_SECONDS

    def _take_over(self, connection: psycopg.Connection[Any]) -> bool:
        """Take an epoch for each new tenure. False when a former leader's transaction is still in the way."""
        assigned = self._leadership.assigned()
        for partition in [p for p, serial in self._tenures.items() if assigned.get(p) != serial]:
            self._tenures.pop(partition)
            self._epochs.pop(partition, None)
        complete = True
        for partition, serial in sorted(assigned.items()):
            if partition in self._tenures:
                continue
            try:
                epoch = take_epoch(connection, self._app, partition, self._incarnation)
            except errors.LockNotAvailable:
                complete = False
                continue
            self._tenures[partition] = serial
            self._epochs[partition] = epoch
            log.emit(events.LEADERSHIP_TAKEN, app=self._app, partition=partition, epoch=epoch)
        events.LEADING.labels(self._app).set(len(self._epochs))
        return complete

    def _report(self, emitted: Emitted) -> None:
        for partition in emitted.fenced:
            if self._epochs.pop(partition, None) is not None:
                self._leadership.rejoin()  # which says that it leads no longer
        for planned, tick in emitted.ticks:
            where = {"app": self._app, "schedule": planned.schedule.id, "scheduled_at": tick.scheduled_at}
            events.TICKS.labels(self._app, tick.outcome).inc()
            if tick.outcome == "emitted":
                lateness = max((planned.schedule.now.astimezone(UTC) - tick.scheduled_at).total_seconds(), 0.0)
                events.LATENESS_SECONDS.labels(self._app).observe(lateness)
                log.emit(events.TICK_EMITTED, **where, command_id=tick.rows[0].id, lateness_seconds=round(lateness, 3))
            elif tick.outcome == "skipped":
                log.emit(events.TICK_SKIPPED, **where, reason=tick.reason)
            else:
                log.emit(events.TICK_FAILED, **where, error=tick.reason)
