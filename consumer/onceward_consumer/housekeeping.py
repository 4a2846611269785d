"""The loop that keeps the tables in bounds: makes ledger weeks ahead, drops old ones, deletes what nobody needs.

Every worker process has one; one at a time does a round, soon after its start and then hourly. It never forgets a command
that may come again: nothing younger than RETENTION, counted from its last change, and nothing that is on its way.
"""

from __future__ import annotations

import time
from dataclasses import asdict, astuple, dataclass
from datetime import timedelta
from typing import Any, Final

import psycopg
from psycopg import errors

from onceward_runtime import events, log
from onceward_runtime.database_loop import DatabaseLoop
from onceward_runtime.postgres import SessionLimits
from onceward_runtime.settings import Settings
from onceward_runtime.sql import query

RETENTION: Final = timedelta(days=30)
"""How long the ledger remembers: one for all groups of a database, since they share its partitions."""
AHEAD: Final = timedelta(days=28)
_BATCH: Final = 5_000
_FIRST_SECONDS: Final = 10.0
_ROUND_SECONDS: Final = 3600.0
_BUSY_SECONDS: Final = 300.0
_LIMITS: Final = SessionLimits(
    lock_timeout=timedelta(milliseconds=200),  # workers queue behind whoever waits to change the ledger's partitions
    statement_timeout=timedelta(seconds=20),
    idle_in_transaction_session_timeout=timedelta(seconds=10),
)
_TRY_LOCK: Final = "select pg_try_advisory_lock(hashtext('onceward.housekeeping'))"
_UNLOCK: Final = "select pg_advisory_unlock(hashtext('onceward.housekeeping'))"
_PREPARE: Final = "select onceward.prepare_ledger(%s)"
_DROP: Final = "select onceward.drop_ledger_week(%s)"


@dataclass(slots=True)
class Kept:
    """What was done, and whether there is more to do at once."""

    prepared: int = 0
    dropped: int = 0
    ledger_rows: int = 0
    attempts: int = 0
    effects: int = 0
    workers: int = 0
    more: bool = False

    def plus(self, other: Kept) -> Kept:
        """Both counts together."""
        return Kept(*(mine + others for mine, others in zip(astuple(self)[:-1], astuple(other)[:-1], strict=True)))


def keep_house(connection: psycopg.Connection[Any]) -> Kept | None:
    """Do one batch of each kind on an autocommit connection; None when another process is at it.

    Each statement is durable on its own. Raises: LockNotAvailable where a table is too busy to be changed now.
    """
    if not _value(connection, _TRY_LOCK):
        return None
    try:
        kept = Kept()
        kept.ledger_rows = _delete(connection, "forget_default")
        kept.attempts = _delete(connection, "forget_attempts")
        kept.effects = _delete(connection, "forget_effects")
        kept.workers = connection.execute(query("onceward_consumer", "forget_workers")).rowcount
        kept.prepared = _value(connection, _PREPARE, AHEAD)
        kept.dropped = 1 if _value(connection, _DROP, RETENTION) is not None else 0
        kept.more = _BATCH in (kept.ledger_rows, kept.attempts, kept.effects) or kept.dropped > 0
        return kept
    finally:
        if not connection.closed:
            connection.execute(_UNLOCK)


def _delete(connection: psycopg.Connection[Any], name: str) -> int:
    return connection.execute(query("onceward_consumer", name), {"retention": RETENTION, "batch": _BATCH}).rowcount


def _value(connection: psycopg.Connection[Any], statement: str, *parameters: Any) -> Any:
    row = connection.execute(statement, parameters).fetchone()
    return row[0] if row else None


class Housekeeping(DatabaseLoop):
    """The loop as a service."""

    def __init__(self, database: Settings | str, *, first: timedelta = timedelta(seconds=_FIRST_SECONDS)) -> None:
        super().__init__("housekeeping", database, self._tidy, limits=_LIMITS, stall=timedelta(minutes=5))
        self._kept, self._seconds = Kept(), 0.0
        self._due = time.monotonic() + first.total_seconds()

    def ready(self) -> bool:
        """Always: commands are run whether or not the house is kept."""
        return True

    def _tidy(self, connection: psycopg.Connection[Any]) -> float:
        if (wait := self._due - time.monotonic()) > 0:
            return wait
        started = time.monotonic()
        self._due = started + _BUSY_SECONDS  # also after a failure
        try:
            kept = keep_house(connection)
        except (errors.LockNotAvailable, errors.QueryCanceled) as error:
            log.emit(events.HOUSEKEEPING_BUSY, error=error, delay_seconds=_BUSY_SECONDS)
            return _BUSY_SECONDS
        if kept is not None:
            self._kept = self._kept.plus(kept)
            self._seconds += time.monotonic() - started
            if kept.more:
                self._due = started
                return 0.0
            done = {name: value for name, value in asdict(self._kept).items() if name != "more"}
            log.emit(events.HOUSEKEEPING_DONE, **done, seconds=round(self._seconds, 3))
            self._kept, self._seconds = Kept(), 0.0
        self._due = time.monotonic() + _ROUND_SECONDS
        return _ROUND_SECONDS
