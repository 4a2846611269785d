"""What goes on beside the stream on a connection of its own: remembering positions, clean-up, parked rows' decisions.

A position is written to onceward.relay_slots before it is confirmed to the server: so a slot that is ahead of it was not
ours, and the table is swept.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import psycopg

from onceward_outbox_relay import parking, slot
from onceward_outbox_relay.cleanup import Cleanup
from onceward_outbox_relay.layout import Layout
from onceward_runtime import events
from onceward_runtime.database_loop import DatabaseLoop
from onceward_runtime.postgres import SessionLimits
from onceward_runtime.settings import Settings
from onceward_runtime.sql import query

_IDLE_SECONDS = 10.0
_REMEMBER_SECONDS = 0.25
_HEALTH_SECONDS = 5.0


class Keeper:
    """Started once the table is swept; stopped with the stream's connection."""

    def __init__(self, database: Settings | str, name: str, layout: Layout, start: int) -> None:
        self._slot = name
        self._cleanup = Cleanup(layout)
        self.acknowledged = start
        """Set by the stream: everything before it is in Kafka."""
        self.remembered = start
        """Set here: written down, so it may be confirmed."""
        self.rows = 0
        """Set by the stream: rows acknowledged so far. Positions that moved without rows are written down seldom."""
        self.blocked = False
        """Set by the stream: whether rows are parked."""
        self.releasable = False
        """Set here: some parked rows may go on."""
        self.urgent = False
        """Set by the stream: the server waits for a confirmation."""
        self._rows_remembered = 0
        self._remembered_at = self._health_at = self._release_at = 0.0
        self._retained = events.RELAY_RETAINED_WAL_BYTES.labels(slot=name)
        self._parked = events.OUTBOX_PARKED.labels(slot=name)
        limits = SessionLimits(lock_timeout=timedelta(seconds=5), statement_timeout=timedelta(seconds=30))
        self._loop = DatabaseLoop("relay keeper", database, self._step, limits=limits)

    def start(self) -> None:
        """Raises: DatabaseError."""
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()

    def wake(self) -> None:
        self._loop.wake()

    @property
    def broken(self) -> bool:
        """Whether the database refuses the connection, as it does while it shuts down."""
        return not self._loop.ready()

    @property
    def waiting(self) -> bool:
        """Whether clean-up waits for a later position."""
        return self._cleanup.mark is not None

    def _step(self, connection: psycopg.Connection[Any]) -> float:
        now = time.monotonic()
        self.remember(connection, now)
        more = self._cleanup.step(connection, self.acknowledged)
        self._cleanup.expire(connection)
        if self.blocked and not self.releasable and now >= self._release_at:
            self._release_at = now + 0.5
            self.releasable = bool(parking.releasable_keys(connection))
        if now >= self._health_at:
            self._health_at = now + _HEALTH_SECONDS
            row = connection.execute(query("onceward_outbox_relay", "slot_health"), (self._slot,)).fetchone()
            if row is not None:
                self._retained.set(row[0])
                self._parked.set(row[1])
        return 0.0 if more else _REMEMBER_SECONDS

    def remember(self, connection: psycopg.Connection[Any], now: float) -> None:
        """Write the acknowledged position down; seldom when no row is behind it, since that writes log itself."""
        position, rows = self.acknowledged, self.rows
        if position <= self.remembered:
            return
        if rows == self._rows_remembered and not self.urgent and now - self._remembered_at < _IDLE_SECONDS:
            return
        slot.remember(connection, self._slot, position)
        self.remembered, self._rows_remembered, self._remembered_at, self.urgent = position, rows, now, False
