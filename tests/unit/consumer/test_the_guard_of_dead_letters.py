"""While nearly everything of a type dies, its dead letters are held back; scattered ones pass, and successes end it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward_consumer.guard import Ceiling, Guard
from onceward_schemas.errors import AppError

PAY = "shop.Pay"


def ids(count: int, start: int = 0) -> list[UUID]:
    return [UUID(int=n) for n in range(start, start + count)]


def tripped() -> Guard:
    guard = Guard(Ceiling(consecutive=5))
    assert [guard.admits(PAY, each, 0.0) for each in ids(6)] == [True] * 5 + [False]
    return guard


def test_a_row_without_a_success_is_an_outage() -> None:
    guard = tripped()
    assert guard.tripped() == [PAY]
    assert not guard.admits(PAY, UUID(int=99), 1e6)


def test_a_success_between_them_begins_a_new_row() -> None:
    guard = Guard(Ceiling(consecutive=5))
    for round_ in range(10):
        assert all(guard.admits(PAY, each, 0.0) for each in ids(5, round_ * 5))
        guard.succeeded(PAY, 1, 0.0)
    assert guard.tripped() == []


def test_half_of_all_is_an_outage_too_and_less_is_not() -> None:
    for good, trips in ((1, True), (2, False)):
        guard = Guard(Ceiling(consecutive=5, least=20, ratio=0.5))
        for n in range(200):
            guard.admits(PAY, UUID(int=n), n / 10)
            guard.succeeded(PAY, good, n / 10)
        assert bool(guard.tripped()) is trips


def test_what_is_older_than_the_window_does_not_count() -> None:
    guard = Guard(Ceiling(consecutive=100, least=20, window=timedelta(seconds=60)))
    for n in range(200):
        assert guard.admits(PAY, UUID(int=n), n * 10.0)
        guard.succeeded(PAY, 1, n * 10.0)


def test_one_whose_transaction_is_run_again_counts_once() -> None:
    guard = Guard(Ceiling(consecutive=5))
    assert all(guard.admits(PAY, UUID(int=1), 0.0) for _ in range(50))


def test_types_are_apart() -> None:
    guard = tripped()
    assert guard.admits("shop.Refund", UUID(int=1), 0.0)


def test_successes_in_a_row_end_it_and_both_changes_are_told() -> None:
    told: list[tuple[str, bool]] = []
    guard = Guard(Ceiling(consecutive=5), lambda *change: told.append(change))
    assert [guard.admits(PAY, each, 0.0) for each in ids(6)] == [True] * 5 + [False]
    guard.succeeded(PAY, 2, 31.0)
    assert not guard.admits(PAY, UUID(int=50), 32.0)
    assert not guard.succeeded(PAY, 2, 33.0)
    assert guard.succeeded(PAY, 1, 34.0)
    assert guard.tripped() == []
    assert told == [(PAY, True), (PAY, False)]


def test_one_that_comes_back_needs_twice_the_successes_until_an_hour_has_passed() -> None:
    guard = Guard(Ceiling(consecutive=1))
    now = 0.0
    for needed in (3, 6, 12, 24, 48, 96, 100, 100):
        list(map(guard.admits, [PAY] * 2, ids(2, int(now) * 2), [now] * 2))
        assert guard.tripped() == [PAY]
        assert not guard.succeeded(PAY, needed - 1, now)
        assert guard.succeeded(PAY, 1, now)
        now += 10
    list(map(guard.admits, [PAY] * 2, ids(2, 10**6), [now + 3601] * 2))
    assert guard.succeeded(PAY, 3, now + 3601)


def test_without_a_ceiling_everything_passes() -> None:
    guard = Guard(None)
    assert all(guard.admits(PAY, each, 0.0) for each in ids(1000))
    assert not guard.succeeded(PAY, 1, 0.0)


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 3)), max_size=120))
def test_no_more_pass_without_a_success_than_the_ceiling_says(steps: list[tuple[bool, float]]) -> None:
    guard = Guard(Ceiling(consecutive=7, least=10, ratio=0.6))
    now, row = 0.0, 0
    for number, (dies, pause) in enumerate(steps):
        now += pause
        if not dies:
            guard.succeeded(PAY, 1, now)
            row = 0
        elif guard.admits(PAY, UUID(int=number), now):
            row += 1
            assert row <= 7
            assert guard.tripped() == []
        else:
            assert guard.tripped() == [PAY]


@pytest.mark.parametrize(
    "values",
    [{"consecutive": 0}, {"ratio": 0}, {"ratio": 1.5}, {"least": True}, {"window": "soon"}, {"successes": 1.5}],
)
def test_a_ceiling_that_means_nothing_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(AppError) as caught:
        Ceiling(**values)
    assert caught.value.remedy
