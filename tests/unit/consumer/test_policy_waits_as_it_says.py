"""A retry comes never sooner than the policy and the server say, in a tier that covers it, and ends in time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward_consumer.durations import duration
from onceward_consumer.policy import (
    LONGEST_RETRY_AFTER,
    TOLERANCE,
    GiveUp,
    RetryPolicy,
    exponential,
    fixed,
    never,
    next_delay,
    tier_for,
)
from onceward_schemas.errors import AppError
from onceward_schemas.topics import delay_label

NOW = datetime(2026, 11, 30, 7, tzinfo=UTC)
SECOND = timedelta(seconds=1)

seconds = st.integers(1, 4_000).map(lambda count: timedelta(milliseconds=count * 250))
policies = st.one_of(
    st.builds(fixed, seconds, attempts=st.integers(2, 9), within=st.none() | seconds, jitter=st.booleans()),
    st.builds(
        lambda first, times, **more: exponential(first, first * times, **more),
        seconds,
        st.integers(1, 100),
        attempts=st.integers(2, 20),
        within=st.none() | seconds,
        factor=st.sampled_from([1.5, 2, 3.3]),
        jitter=st.booleans(),
    ),
)
chances = st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2)


@given(policies, st.integers(1, 25), st.none() | seconds, chances, st.none() | seconds)
def test_a_delay_keeps_every_promise(
    policy: RetryPolicy, attempt: int, retry_after: timedelta | None, chance: list[float], ago: timedelta | None
) -> None:
    first = None if ago is None else NOW - ago
    wait = next_delay(policy, attempt, first, NOW, retry_after, chance=iter(chance).__next__)
    if attempt >= policy.attempts:
        assert wait == GiveUp("attempts_exhausted")
        return
    asked = min(retry_after or timedelta(0), LONGEST_RETRY_AFTER)
    least = max(policy.delays[min(attempt, len(policy.delays)) - 1], asked)
    end = None if policy.within is None else (first or NOW) + policy.within
    if end is not None and NOW + least > end:
        assert wait == GiveUp("time_exhausted")
        return
    assert isinstance(wait, timedelta)
    assert wait >= least
    assert end is None or NOW + wait <= end
    tier = tier_for(policy, wait)
    assert tier in policy.tiers
    covered = wait <= tier * (1 + TOLERANCE)
    assert covered or tier == policy.tiers[-1]
    if end is None and covered:
        assert wait >= tier  # so that records of a tier fall due in order, but for the tolerance


@given(policies)
def test_every_tier_has_a_topic_name(policy: RetryPolicy) -> None:
    labels = [delay_label(tier) for tier in policy.tiers]
    assert len(set(labels)) == len(labels)
    assert [duration(label) for label in labels] == list(policy.tiers)


def test_jitter_spreads_over_two_tiers_and_the_tolerance_only() -> None:
    policy = exponential("1s", "8s", attempts=6)
    for chance, expected in [
        ([0.9, 0.0], 1.0),
        ([0.9, 0.5], 1.05),
        ([0.1, 0.0], 2.0),
        ([0.1, 0.5], 2.1),
    ]:
        wait = next_delay(policy, 1, None, NOW, chance=iter(chance).__next__)
        assert wait == timedelta(seconds=expected)


def test_jitter_does_not_run_past_the_end() -> None:
    policy = exponential("1s", "8s", attempts=6, within="1500ms")
    wait = next_delay(policy, 1, None, NOW, chance=iter([0.1, 0.5]).__next__)
    assert wait == timedelta(seconds=1.5)


def test_without_jitter_there_is_no_chance() -> None:
    def chance() -> float:
        raise AssertionError("asked")

    waits = [
        next_delay(exponential("1s", "10s", attempts=7, jitter=False), n, NOW, NOW, chance=chance) for n in range(1, 8)
    ]
    assert waits == [SECOND, 2 * SECOND, 4 * SECOND, 8 * SECOND, 10 * SECOND, 10 * SECOND, GiveUp("attempts_exhausted")]


def test_a_server_that_asks_for_more_gets_it() -> None:
    policy = exponential("1s", "8s", attempts=6, jitter=False)
    assert next_delay(policy, 1, None, NOW, retry_after=3 * SECOND) == 4 * SECOND
    assert next_delay(policy, 1, None, NOW, retry_after=timedelta(seconds=30)) == 30 * SECOND
    assert tier_for(policy, 30 * SECOND) == 8 * SECOND
    assert next_delay(policy, 4, None, NOW, retry_after=SECOND) == 8 * SECOND


def test_a_server_that_asks_for_a_year_is_believed_for_an_hour() -> None:
    assert next_delay(fixed("1s"), 1, None, NOW, retry_after=timedelta(days=365)) == timedelta(hours=1)


def test_a_server_that_asks_for_more_time_than_is_left_ends_it() -> None:
    policy = fixed("1s", within="1m")
    assert next_delay(policy, 1, None, NOW, retry_after=timedelta(seconds=61)) == GiveUp("time_exhausted")
    assert next_delay(policy, 1, None, NOW, retry_after=timedelta(seconds=60)) == timedelta(seconds=60)


def test_never_never_retries() -> None:
    assert next_delay(never, 1, None, NOW) == GiveUp("attempts_exhausted")
    assert never.tiers == ()


@pytest.mark.parametrize(
    "build",
    [
        lambda: fixed("0s"),
        lambda: fixed("five"),
        lambda: fixed("1s", attempts=0),
        lambda: fixed("1s", attempts=2.5),  # type: ignore[arg-type]
        lambda: fixed("1s", within="-1s"),
        lambda: exponential("10s", "1s"),
        lambda: exponential("1s", "10s", factor=1),
        lambda: exponential("1s", "10s", factor=float("nan")),
        lambda: exponential("1ms", "10d", attempts=100, factor=1.2),
        lambda: RetryPolicy(delays=(), attempts=2),
        lambda: fixed("1d", attempts=40),
        lambda: fixed("1d", within="30d"),
        lambda: exponential("1s", "10m", attempts=10**12),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(build: Any) -> None:
    with pytest.raises(AppError) as caught:
        build()
    assert caught.value.remedy


def test_no_retry_comes_later_than_the_policy_said() -> None:
    for policy in (
        exponential("1s", "8s", attempts=9),
        exponential("1s", "8s", attempts=3, jitter=False),
        fixed("5s", jitter=True),
    ):
        waited = timedelta(0)
        for attempt in range(1, policy.attempts):
            delay = next_delay(policy, attempt, NOW, NOW, chance=iter((0.0, 0.999)).__next__)
            assert isinstance(delay, timedelta)
            waited += delay
        assert waited <= policy.longest


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("6h", 21_600_000), ("1d", 86_400_000), (" 1.5S ", 1_500)],
)
def test_durations_are_read_as_people_write_them(text: str, milliseconds: int) -> None:
    assert duration(text) == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize(
    "value", ["", "10", "s", "-5s", "1e3s", "1y", "10s ago", "0.4ms", "999999999999d", 5, None, True]
)
def test_other_durations_are_refused(value: Any) -> None:
    with pytest.raises(AppError, match=r"^catch_up is"):
        duration(value, "catch_up")
