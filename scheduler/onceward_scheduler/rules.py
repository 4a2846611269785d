"""When a schedule's ticks are: pure, in UTC, strictly increasing.

A cron line with fixed hours means local time and fires once for each local date; one that is frequent (`*` in its hour or
minute field) keeps real-time cadence over changes of the clocks, and so does an interval.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, Protocol, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from onceward_consumer.durations import duration
from onceward_schemas.errors import AppError

Gap: TypeAlias = Literal["run_at_gap_end"]
"""What a local time that the clocks jump over becomes. The one policy so far: the first instant after the gap."""
Overlap: TypeAlias = Literal["first"]
"""Which of two instants with one local time counts. The one policy so far: the earlier."""

_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * SUN",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_EVERY = re.compile(r"every\s+(?P<period>\S+)(?:\s+from\s+(?P<anchor>\S+))?\Z", re.IGNORECASE)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SHORTEST = timedelta(seconds=1)
_WHOLE_DAY = timedelta(hours=23)
_FORMS = 'Write a cron line such as "0 7 * * MON-FRI", or an interval such as "every 10s".'


class Rule(Protocol):
    """Something that says when the next tick is."""

    def next_after(self, instant: datetime) -> datetime | None:
        """The first tick later than `instant` (aware), in UTC; None when there is none any more."""


@dataclass(frozen=True, slots=True)
class IntervalRule:
    """Every `period`, counted from `anchor` in real time.

    >>> rule = IntervalRule(timedelta(hours=1), datetime(2026, 1, 1, 0, 30, tzinfo=UTC))
    >>> rule.next_after(datetime(2026, 5, 5, 7, 30, tzinfo=UTC)).isoformat()
    '2026-05-05T08:30:00+00:00'
    """

    period: timedelta
    anchor: datetime = _EPOCH

    def next_after(self, instant: datetime) -> datetime | None:
        """See Rule."""
        passed = (instant - self.anchor) // self.period
        try:
            return self.anchor + max(passed + 1, 0) * self.period
        except OverflowError:
            return None


@dataclass(frozen=True, slots=True)
class CronRule:
    """A cron line in a time zone.

    >>> berlin = CronRule("30 2 * * *", ZoneInfo("Europe/Berlin"))  # 2026-03-29: 02:00 becomes 03:00
    >>> [tick.isoformat() for tick in ticks_between(berlin, datetime(2026, 3, 28, tzinfo=UTC), datetime(2026, 3, 31, tzinfo=UTC))]
    ['2026-03-28T01:30:00+00:00', '2026-03-29T01:00:00+00:00', '2026-03-30T00:30:00+00:00']
    """

    line: str
    zone: ZoneInfo
    gap: Gap = "run_at_gap_end"
    overlap: Overlap = "first"

    @property
    def fixed(self) -> bool:
        """Whether it names hours, and not just a cadence."""
        return not any(field.startswith("*") for field in self.line.split()[-5:-3])

    def next_after(self, instant: datetime) -> datetime | None:
        """See Rule."""
        local = instant.astimezone(self.zone)
        try:
            if not self.fixed:
                return next(CronSim(self.line, local)).astimezone(UTC)
            # Local times come in order, and so do the instants they stand for: the first later one is the next.
            return next(found for found in self._instants(local.replace(tzinfo=None)) if found > instant)
        except (StopIteration, OverflowError):
            return None

    def _instants(self, start: datetime) -> Iterator[datetime]:
        for naive in CronSim(self.line, start):
            if (found := self._instant(naive)) is not None:
                yield found

    def _instant(self, naive: datetime) -> datetime | None:
        """The instant of a local time; of two the first; None on a date that the zone never had."""
        before = naive.replace(tzinfo=self.zone)
        instant = before.astimezone(UTC)
        if instant.astimezone(self.zone).replace(tzinfo=None) == naive:
            return instant
        after = naive.replace(tzinfo=self.zone, fold=1)
        if before.utcoffset() != after.utcoffset() and _gap(before, after) >= _WHOLE_DAY:
            return None
        return _first_at_or_after(after.astimezone(UTC), instant, before.utcoffset(), self.zone)


def _gap(before: datetime, after: datetime) -> timedelta:
    return (after.utcoffset() or timedelta()) - (before.utcoffset() or timedelta())


def _first_at_or_after(low: datetime, high: datetime, old: timedelta | None, zone: ZoneInfo) -> datetime:
    """The instant between two at which the zone's offset changes, to the second."""
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        if middle.astimezone(zone).utcoffset() == old:
            low = middle
        else:
            high = middle
    return low if low.astimezone(zone).utcoffset() != old else high


def parse(text: str, tz: str = "UTC") -> Rule:
    """Read a rule: a cron line of five fields (six with seconds first), a name like @daily, or `every 10s`.

    `every 1h from 2026-01-01T00:30:00Z` counts from an instant; without it, from 1970 in UTC.

    Raises: AppError.
    """
    text = " ".join(text.split())
    zone = _zone(tz)
    if text.lower().startswith("every"):
        return _interval(text, zone)
    line = _NAMED.get(text.lower(), text)
    if line.startswith("@"):
        nearest = difflib.get_close_matches(line, _NAMED, n=1)
        raise AppError(f"{text!r:.60} is not a rule.", remedy=f"Did you mean {nearest[0]}?" if nearest else _FORMS)
    if len(line.split()) not in (5, 6):
        raise AppError(f"{text!r:.60} has {len(line.split())} fields; a cron line has five.", remedy=_FORMS)
    try:
        CronSim(line, datetime(2026, 1, 1))
    except (CronSimError, ValueError, IndexError) as error:
        raise AppError(
            f"{text!r:.60} is not a cron line: {str(error).lower() or 'bad field'}.", remedy=_FORMS
        ) from error
    rule = CronRule(line.upper(), zone)
    if rule.next_after(datetime(2026, 1, 1, tzinfo=UTC)) is None:
        raise AppError(f"{text!r:.60} never fires.", remedy="Correct its day and month.")
    return rule


def ticks_between(rule: Rule, start: datetime, end: datetime) -> Iterator[datetime]:
    """Ticks later than `start`, up to `end`.

    >>> [t.second for t in ticks_between(parse("every 20s"), _EPOCH, _EPOCH + timedelta(minutes=1))]
    [20, 40, 0]
    """
    found = rule.next_after(start)
    while found is not None and found <= end:
        yield found
        found = rule.next_after(found)


def _interval(text: str, zone: ZoneInfo) -> IntervalRule:
    match = _EVERY.match(text)
    if match is None:
        raise AppError(
            f"{text!r:.60} is not an interval.", remedy='Write "every 10s" or "every 1h from 2026-01-01T00:30Z".'
        )
    period = duration(match["period"], "The interval")
    if period < _SHORTEST:
        raise AppError(f"The interval is {match['period']}.", remedy="The shortest is 1s.")
    if match["anchor"] is None:
        return IntervalRule(period)
    try:
        anchor = datetime.fromisoformat(match["anchor"])
    except ValueError as error:
        raise AppError(
            f"{match['anchor']!r:.40} is not an instant.", remedy="Write it like 2026-01-01T00:30:00Z."
        ) from error
    return IntervalRule(period, (anchor if anchor.tzinfo else anchor.replace(tzinfo=zone)).astimezone(UTC))


def _zone(tz: str) -> ZoneInfo:
    try:
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        nearest = difflib.get_close_matches(str(tz), available_timezones(), n=1)
        hint = f"Did you mean {nearest[0]!r}?" if nearest else 'Use an IANA name like "Asia/Almaty".'
        raise AppError(f"{tz!r:.60} is not a time zone.", remedy=hint) from error
