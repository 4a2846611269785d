"""Which ticks of a schedule are due, and which are let go: pure, on the database's clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo

from onceward_scheduler.rules import Rule

OUTSIDE_CATCH_UP: str = "outside_catch_up_window"
SUPERSEDED: str = "superseded"
NOTHING_TO_DO: str = "function_returned_nothing"
DEFAULT_WINDOW = timedelta(minutes=5)

CatchUpMode: TypeAlias = Literal["all", "last"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp:
    """What becomes of ticks that could not be emitted in time."""

    window: timedelta = DEFAULT_WINDOW
    """Older ticks are skipped. Defaults to 5 minutes."""
    mode: CatchUpMode = "all"
    """Of several due ticks, emit all or the last one. Defaults to all."""
    last_in_any_case: bool = False
    """Whether the last due tick is emitted however old it is, so that a daily report is made after a night's outage."""


def catch_up_of(window: timedelta | None) -> CatchUp:
    """What a schedule was declared with: its own window strictly, or the default one and the last tick in any case.

    >>> catch_up_of(timedelta(hours=2)).last_in_any_case, catch_up_of(None).last_in_any_case
    (False, True)
    """
    return CatchUp(last_in_any_case=True) if window is None else CatchUp(window=window)


@dataclass(frozen=True, slots=True)
class DueTick:
    """One due instant; with a reason when it is to be skipped."""

    scheduled_at: datetime
    skipped_because: str | None = None


@dataclass(frozen=True, slots=True)
class Due:
    """The due ticks in order, and the tick after them (None: there is none any more)."""

    ticks: list[DueTick]
    next_at: datetime | None


def due_ticks(rule: Rule, first: datetime, now: datetime, catch_up: CatchUp, limit: int = 500) -> Due:
    """Decide on the ticks from `first` to `now`, at most `limit` of them.

    >>> from onceward_scheduler.rules import parse
    >>> start = datetime(2026, 5, 5, tzinfo=UTC)
    >>> due = due_ticks(parse("every 10s"), start, start + timedelta(seconds=25), CatchUp(window=timedelta(seconds=20)))
    >>> [(tick.scheduled_at.second, tick.skipped_because) for tick in due.ticks], due.next_at.second
    ([(0, 'outside_catch_up_window'), (10, None), (20, None)], 30)
    """
    ticks: list[DueTick] = []
    found: datetime | None = first
    while found is not None and found <= now and len(ticks) < limit:
        following = rule.next_after(found)
        last = following is None or following > now
        ticks.append(DueTick(found, _skipped_because(found, now, catch_up, last)))
        found = following
    return Due(ticks, found)


def _skipped_because(scheduled_at: datetime, now: datetime, catch_up: CatchUp, last: bool) -> str | None:
    if last and catch_up.last_in_any_case:
        return None
    if now - scheduled_at > catch_up.window:
        return OUTSIDE_CATCH_UP
    return None if last or catch_up.mode == "all" else SUPERSEDED


def retry_delay(failures: int) -> timedelta:
    """How long a failing schedule is left alone.

    >>> [retry_delay(n).seconds for n in (1, 2, 3, 10)]
    [1, 2, 4, 60]
    """
    return timedelta(seconds=min(2 ** min(failures - 1, 10), 60))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What a schedule's function is called with."""

    schedule_id: str
    scheduled_at: datetime
    """The instant that the tick stands for, in UTC; not the time of the call."""
    local: datetime
    """The same in the schedule's time zone."""
    previous: datetime | None
    """The last tick before this one that became a command, in UTC."""

    @property
    def local_date(self) -> date:
        """The date in the schedule's time zone: a business date that does not depend on when it runs."""
        return self.local.date()


def tick_at(schedule_id: str, scheduled_at: datetime, tz: str, previous: datetime | None) -> Tick:
    """The tick of one instant."""
    return Tick(
        schedule_id=schedule_id,
        scheduled_at=scheduled_at.astimezone(UTC),
        local=scheduled_at.astimezone(ZoneInfo(tz)),
        previous=previous,
    )


def idempotency_key(app: str, schedule_id: str, scheduled_at: datetime, position: int = 0) -> str:
    """What names the tick's effect, and of several commands which one.

    >>> idempotency_key("hr", "digest", datetime(2026, 5, 5, 7, tzinfo=UTC))
    'hr/digest@2026-05-05T07:00:00Z'
    """
    name = f"{app}/{schedule_id}@{scheduled_at.astimezone(UTC).isoformat().replace('+00:00', 'Z')}"
    return f"{name}#{position + 1}" if position else name
