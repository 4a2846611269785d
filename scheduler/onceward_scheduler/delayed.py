"""The loop that moves delayed commands to the outbox when their time has come: each once, none early, in order."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
from psycopg import errors

from onceward_runtime import events, log
from onceward_runtime.database_loop import DatabaseLoop
from onceward_runtime.postgres import SessionLimits
from onceward_runtime.settings import Settings
from onceward_runtime.sql import query

_PACKAGE = "onceward_scheduler"
_BATCH = 1000
_LONGEST_SLEEP = 0.5
"""A command published meanwhile may be due this much later than it should."""
_SOON = 0.05
_LIMITS = SessionLimits(
    lock_timeout=timedelta(seconds=1),
    statement_timeout=timedelta(seconds=30),
    idle_in_transaction_session_timeout=timedelta(seconds=3),
    client_connection_check_interval=timedelta(seconds=2),
)


def move_due(connection: psycopg.Connection[Any], limit: int = _BATCH) -> int | None:
    """Move what is due by the database's clock, in one transaction. Returns how many; None when another mover is at it.

    A row that somebody is just taking back is waited for, but not for long: then it is left out.
    """
    move = query(_PACKAGE, "delayed_move")
    with connection.transaction():
        mine = connection.execute("select pg_try_advisory_xact_lock(hashtext('onceward.delayed'))").fetchone()
        if not mine or not mine[0]:
            return None
        try:
            with connection.transaction():
                found = connection.execute(move.replace("{busy}", ""), {"limit": limit}).fetchone()
        except errors.LockNotAvailable:
            found = connection.execute(move.replace("{busy}", "skip locked"), {"limit": limit}).fetchone()
    return int(found[0]) if found else 0


class DelayedMover(DatabaseLoop):
    """The loop as a service; any number may run."""

    def __init__(self, database: Settings | str) -> None:
        super().__init__("delayed", database, self._move, limits=_LIMITS)

    def _move(self, connection: psycopg.Connection[Any]) -> float:
        moved = move_due(connection)
        if moved is None:
            return _SOON
        if moved:
            log.emit(events.DELAYED_EMITTED, size=moved)
        if moved == _BATCH:
            return 0.0
        found = connection.execute(query(_PACKAGE, "delayed_wait")).fetchone()
        return _LONGEST_SLEEP if found is None else min(max(found[0], 0.0), _LONGEST_SLEEP)
