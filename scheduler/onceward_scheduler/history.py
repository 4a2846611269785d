"""Schedules and their ticks as an operator looks at them, and for how long."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from onceward_runtime.sql import query

_PACKAGE = "onceward_scheduler"
RETENTION: Final = timedelta(days=90)
"""How long ticks are kept."""
FORGET_BATCH: Final = 5_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """One schedule."""

    app: str
    id: str
    rule: str
    tz: str
    partition: int
    next_at: datetime | None
    due_at: datetime | None
    last_at: datetime | None
    failures: int
    paused_because: str | None
    undeclared_at: datetime | None
    overdue: bool | None

    @property
    def state(self) -> str:
        """In words: why it is or is not emitted."""
        if self.undeclared_at is not None:
            return "undeclared: the code has it no longer"
        if self.paused_because is not None:
            return f"paused: {self.paused_because}"
        if self.failures:
            return f"failing, {self.failures} times in a row"
        if self.next_at is None:
            return "ended"
        return "overdue: no scheduler leads it" if self.overdue else "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class TickRow:
    """One tick and what became of it."""

    app: str
    schedule_id: str
    scheduled_at: datetime
    outcome: str
    reason: str | None
    command_ids: list[UUID]
    emitted_at: datetime


def schedules(connection: psycopg.Connection[Any], *, app: str | None = None, limit: int = 200) -> list[ScheduleRow]:
    """All schedules, those that are no longer declared included."""
    with connection.cursor(row_factory=class_row(ScheduleRow)) as cursor:
        return cursor.execute(query(_PACKAGE, "schedules_list"), {"app": app, "limit": limit}).fetchall()


def ticks(
    connection: psycopg.Connection[Any],
    *,
    app: str | None = None,
    schedule_id: str | None = None,
    outcome: str | None = None,
    limit: int = 50,
) -> list[TickRow]:
    """Ticks, the latest first."""
    arguments = {"app": app, "schedule_id": schedule_id, "outcome": outcome, "limit": limit}
    with connection.cursor(row_factory=class_row(TickRow)) as cursor:
        return cursor.execute(query(_PACKAGE, "ticks_list"), arguments).fetchall()


def forget(connection: psycopg.Connection[Any]) -> int:
    """Delete a batch of ticks older than RETENTION, of any app; returns how many. Several may do so at once."""
    arguments = {"retention": RETENTION, "batch": FORGET_BATCH}
    return connection.execute(query(_PACKAGE, "ticks_forget"), arguments).rowcount
