"""Ticks are strictly increasing in UTC, fixed hours come once a local date, frequent rules keep real time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward_scheduler.rules import CronRule, IntervalRule, parse, ticks_between
from onceward_schemas.errors import AppError

ZONES = sorted(zone for zone in available_timezones() if "/" in zone and not zone.startswith(("posix", "right")))
INSTANTS = st.datetimes(datetime(1990, 1, 1), datetime(2036, 1, 1), timezones=st.just(UTC))
FIXED = st.builds(
    "{} {} {} * {}".format,
    st.sampled_from(["0", "30", "59", "15,45"]),
    st.sampled_from(["0", "1", "2", "3", "7", "23", "1,2,3"]),
    st.sampled_from(["*", "1", "29", "L"]),
    st.sampled_from(["*", "MON-FRI", "SUN", "6#2"]),
)
FREQUENT = st.sampled_from(["* * * * *", "*/15 * * * *", "0 * * * *", "30 */2 * * *", "*/20 2 * * *", "*/30 1-3 * * *"])


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]


def between(rule_text: str, tz: str, start: datetime, days: int) -> list[datetime]:
    return list(ticks_between(parse(rule_text, tz), start, start + timedelta(days=days)))


@given(line=st.one_of(FIXED, FREQUENT), tz=st.sampled_from(ZONES), start=INSTANTS)
def test_ticks_increase_and_do_not_depend_on_where_one_starts(line: str, tz: str, start: datetime) -> None:
    rule = parse(line, tz)
    instant = start
    for _ in range(8):
        following = rule.next_after(instant)
        if following is None:
            return
        assert following > instant
        assert following.tzinfo is UTC
        middle = instant + (following - instant) / 2
        assert rule.next_after(middle) == following
        instant = following


@settings(max_examples=6, deadline=None)
@given(
    tz=st.sampled_from(ZONES),
    year=st.integers(1990, 2030),
    hour=st.integers(0, 23),
    minute=st.sampled_from([0, 30, 59]),
)
def test_a_fixed_hour_comes_once_for_each_local_date(tz: str, year: int, hour: int, minute: int) -> None:
    zone = ZoneInfo(tz)
    start = datetime(year, 1, 1, tzinfo=zone)
    found = list(
        ticks_between(parse(f"{minute} {hour} * * *", tz), start - timedelta(seconds=1), start + timedelta(days=366))
    )
    expected = [first_instant(zone, date(year, 1, 1) + timedelta(days=day), hour, minute) for day in range(367)]
    wanted = sorted({each for each in expected if each is not None and each <= start + timedelta(days=366)})
    assert found == wanted


def first_instant(zone: ZoneInfo, day: date, hour: int, minute: int) -> datetime | None:
    """By brute force: the first minute of real time whose local time is this or, where it is jumped over, later."""
    wanted = datetime(day.year, day.month, day.day, hour, minute)
    instant = wanted.replace(tzinfo=UTC) - timedelta(hours=30)
    previous = instant.astimezone(zone).replace(tzinfo=None)
    for step in (timedelta(hours=1), timedelta(minutes=10), timedelta(seconds=10), timedelta(seconds=1)):
        while True:
            local = (instant + step).astimezone(zone).replace(tzinfo=None)
            if local >= wanted:
                break
            instant, previous = instant + step, local
    instant += timedelta(seconds=1)
    local = instant.astimezone(zone).replace(tzinfo=None)
    return None if local - previous > timedelta(hours=23) and local != wanted else instant


@given(
    line=st.sampled_from(["*/15 * * * *", "0 * * * *", "*/20 2 * * *", "*/30 1-3 * * MON"]),
    tz=st.sampled_from(["Europe/Berlin", "America/New_York", "Asia/Almaty", "Pacific/Auckland", "Australia/Lord_Howe"]),
    day=st.integers(0, 3650),
)
def test_a_frequent_rule_fires_at_every_real_minute_that_fits(line: str, tz: str, day: int) -> None:
    zone = ZoneInfo(tz)
    start = utc(2020, 1, 1) + timedelta(days=day)
    minutes = [start + timedelta(minutes=n) for n in range(1, 2 * 1440 + 1)]
    assert between(line, tz, start, 2) == [m for m in minutes if fits(line, m.astimezone(zone))]


def fits(line: str, local: datetime) -> bool:
    return {
        "*/15 * * * *": local.minute % 15 == 0,
        "0 * * * *": local.minute == 0,
        "*/20 2 * * *": local.hour == 2 and local.minute % 20 == 0,
        "*/30 1-3 * * MON": local.weekday() == 0 and 1 <= local.hour <= 3 and local.minute % 30 == 0,
    }[line]


def test_a_time_that_the_clocks_jump_over_runs_at_the_end_of_the_gap() -> None:
    assert between("30 2 * * *", "Europe/Berlin", utc(2026, 3, 29), 1) == [utc(2026, 3, 29, 1)]
    assert between("0 2,3 * * *", "Europe/Berlin", utc(2026, 3, 28, 12), 1) == [utc(2026, 3, 29, 1)]
    assert between("30 0 * * *", "America/Sao_Paulo", utc(2017, 10, 15), 1) == [utc(2017, 10, 15, 3)]


def test_a_time_that_comes_twice_runs_at_the_first() -> None:
    assert between("30 2 * * *", "Europe/Berlin", utc(2026, 10, 25), 1) == [utc(2026, 10, 25, 0, 30)]


def test_a_date_that_a_zone_left_out_has_no_tick() -> None:
    found = between("0 7 * * *", "Pacific/Apia", utc(2011, 12, 29, 0), 4)
    assert [each.astimezone(ZoneInfo("Pacific/Apia")).day for each in found] == [29, 31, 1, 2]


def test_every_hour_fires_in_both_hours_of_an_overlap_and_skips_none_over_a_gap() -> None:
    for day in (utc(2026, 10, 25), utc(2026, 3, 29)):
        assert between("0 * * * *", "Europe/Berlin", day, 1) == [day + timedelta(hours=n) for n in range(1, 25)]


def test_weekdays_have_names_and_mean_the_local_day() -> None:
    found = between(
        "0 2 * * MON-FRI", "Asia/Almaty", utc(2026, 5, 1), 7
    )  # 2026-05-01 is a Friday; 02:00 is 21:00 before
    assert [(each.day, each.hour) for each in found] == [(3, 21), (4, 21), (5, 21), (6, 21), (7, 21)]


def test_seconds_are_a_sixth_field_and_go_first() -> None:
    assert between("*/20 0 7 * * *", "UTC", utc(2026, 5, 1), 1) == [
        utc(2026, 5, 1, 7, 0, second) for second in (0, 20, 40)
    ]


def test_an_interval_keeps_to_its_anchor() -> None:
    rule = parse("every 90m from 2026-01-01T00:30:00", "Europe/Berlin")
    assert isinstance(rule, IntervalRule)
    assert rule.next_after(utc(2020, 1, 1)) == utc(2025, 12, 31, 23, 30)
    assert rule.next_after(utc(2025, 12, 31, 23, 30)) == utc(2026, 1, 1, 1)


def test_names_stand_for_lines() -> None:
    assert parse("@Daily", "UTC") == CronRule("0 0 * * *", ZoneInfo("UTC"))


@pytest.mark.parametrize(
    ("text", "tz", "said"),
    [
        ("0 25 * * *", "UTC", "bad hour"),
        ("0 7 * *", "UTC", "has 4 fields"),
        ("", "UTC", "has 0 fields"),
        ("0 0 30 2 *", "UTC", "bad day"),
        ("0 7 * * FUNDAY", "UTC", "bad day-of-week"),
        ("@weekdays", "UTC", "Did you mean @weekly"),
        ("every", "UTC", "not an interval"),
        ("every soon", "UTC", "The interval"),
        ("every 500ms", "UTC", "shortest is 1s"),
        ("every 1h from noon", "UTC", "not an instant"),
        ("0 7 * * *", "Asia/Almatty", "Did you mean 'Asia/Almaty'"),
        ("٣ 7 * * *", "UTC", "bad minute"),
    ],
)
def test_a_wrong_rule_says_what_is_wrong(text: str, tz: str, said: str) -> None:
    with pytest.raises(AppError, match=said) as raised:
        parse(text, tz)
    assert raised.value.remedy
