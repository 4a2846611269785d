"""Groups are as large as can be run in a tenth of a second, and as careful as the last ones had to be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onceward_consumer.moods import Mode, Mood
from onceward_consumer.pace import MOST, Pace

groups = st.lists(st.tuples(st.integers(1, 100), st.floats(0, 60)), max_size=40)


@given(groups, st.integers(0, 10_000), st.integers(1, 500))
def test_a_group_is_never_empty_nor_larger_than_allowed(before: list[tuple[int, float]], share: int, most: int) -> None:
    pace = Pace(most)
    for count, seconds in before:
        pace.note(count, seconds)
    assert 1 <= pace.most(share) <= max(1, min(share, most))


@given(groups, st.floats(0.0001, 1.0))
def test_whatever_was_before_it_learns_how_long_commands_take(before: list[tuple[int, float]], each: float) -> None:
    pace = Pace()
    for count, seconds in before:
        pace.note(count, seconds)
    for _ in range(2_000):
        count = pace.most(1_000)
        pace.note(count, count * each)
    assert abs(pace.most(1_000) - max(1, min(MOST, int(0.1 / each)))) <= 1


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60))
def test_a_mood_is_careful_while_groups_fail_and_forgets_it(before: list[tuple[bool, bool]]) -> None:
    mood = Mood()
    for raised, refused in before:
        mood.note(raised=raised, refused=refused)
    assert mood.mode() in (Mode.SWIFT, Mode.GUARDED, Mode.CAREFUL)
    for _ in range(40):
        mood.note(raised=True, refused=False)
    assert mood.mode() is Mode.GUARDED
    for _ in range(40):
        mood.note(raised=False, refused=True)
    assert mood.mode() is Mode.CAREFUL
    for _ in range(60):
        mood.note(raised=False, refused=False)
    assert mood.mode() is Mode.SWIFT
