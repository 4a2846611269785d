"""From a due schedule to the ticks and outbox rows to write for it: calls the schedule's function, touches no database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

from onceward_producer.rows import Encoder, OutboxRow, row
from onceward_scheduler.definitions import Definition
from onceward_scheduler.ticks import NOTHING_TO_DO, Tick, due_ticks, idempotency_key, retry_delay, tick_at
from onceward_schemas.command import Command
from onceward_schemas.errors import AppError

Outcome: TypeAlias = Literal["emitted", "skipped", "failed"]
_LONGEST_REASON = 500


class DueSchedule(NamedTuple):
    """A row that is due, as it was read."""

    id: str
    partition: int
    next_at: datetime
    last_at: datetime | None
    failures: int
    now: datetime
    """The database's clock."""


@dataclass(frozen=True, slots=True)
class PlannedTick:
    """One tick and what is to become of it."""

    scheduled_at: datetime
    outcome: Outcome
    reason: str | None = None
    rows: list[OutboxRow] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Planned:
    """What to write for one schedule. A failed tick is the last one, and `next_at` stays at it."""

    schedule: DueSchedule
    ticks: list[PlannedTick]
    next_at: datetime | None

    @property
    def wait_seconds(self) -> float | None:
        """After a failure, how long to leave it alone."""
        failed = self.ticks and self.ticks[-1].outcome == "failed"
        return retry_delay(self.schedule.failures + 1).total_seconds() if failed else None

    @property
    def last_at(self) -> datetime | None:
        """The last tick that becomes a command."""
        return next((tick.scheduled_at for tick in reversed(self.ticks) if tick.outcome == "emitted"), None)

    def failed(self, error: Exception) -> Planned:
        """The same schedule when its rows cannot be written: everything waits at the first tick."""
        first = self.ticks[0].scheduled_at
        return Planned(self.schedule, [PlannedTick(first, "failed", reason_of(error))], first)


def plan(app: str, definition: Definition, schedule: DueSchedule, codec: Encoder) -> Planned:
    """Decide on the due ticks and make their rows. Never raises for what the schedule's function or the codec does."""
    due = due_ticks(definition.rule, schedule.next_at, schedule.now, definition.catch_up)
    ticks: list[PlannedTick] = []
    previous = schedule.last_at
    for tick in due.ticks:
        if tick.skipped_because is not None:
            ticks.append(PlannedTick(tick.scheduled_at, "skipped", tick.skipped_because))
            continue
        try:
            rows = _rows(app, definition, tick_at(schedule.id, tick.scheduled_at, definition.tz, previous), codec)
        except BaseException as error:
            ticks.append(PlannedTick(tick.scheduled_at, "failed", reason_of(error)))
            return Planned(schedule, ticks, tick.scheduled_at)
        if rows:
            ticks.append(PlannedTick(tick.scheduled_at, "emitted", None, rows))
            previous = tick.scheduled_at
        else:
            ticks.append(PlannedTick(tick.scheduled_at, "skipped", NOTHING_TO_DO))
    return Planned(schedule, ticks, due.next_at)


def _rows(app: str, definition: Definition, tick: Tick, codec: Encoder) -> list[OutboxRow]:
    commands = _commands(definition.id, definition.function(tick))
    return [
        row(
            command,
            codec,
            idempotency_key=idempotency_key(app, definition.id, tick.scheduled_at, position),
            origin=f"schedule:{definition.id}",
        )
        for position, command in enumerate(commands)
    ]


def _commands(schedule_id: str, returned: object) -> list[Command]:
    if returned is None:
        return []
    if isinstance(returned, Command):
        return [returned]
    several = isinstance(returned, Iterable) and not isinstance(returned, str | bytes | Mapping)
    found: list[object] = list(returned) if several else [returned]  # type: ignore[call-overload]
    commands = [each for each in found if isinstance(each, Command)]
    if len(commands) != len(found):
        wrong = next(each for each in found if not isinstance(each, Command))
        raise AppError(
            f"The schedule {schedule_id!r} returned a {type(wrong).__name__}.",
            remedy="Return a command, a list of commands, or None to skip the tick.",
        )
    return commands


def reason_of(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")[:_LONGEST_REASON]
