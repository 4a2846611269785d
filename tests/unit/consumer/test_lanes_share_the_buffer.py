"""No lane can fill the buffer so that nothing of another is fetched, and one alone gets nearly all of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onceward_consumer.buffer import Buffer
from onceward_consumer.turns import LaneRules
from tests.unit.consumer.test_lanes import delivery

LANES = ("a", "b", "c")


def shared(most: int = 1_000) -> Buffer:
    return Buffer(most_records=most, lanes=dict.fromkeys(LANES, LaneRules()))


def fill(buffer: Buffer, lane: str, count: int) -> None:
    buffer.add(delivery(None, n, lane=lane) for n in range(count))


def test_a_lane_alone_gets_four_fifths() -> None:
    buffer = shared()
    fill(buffer, "a", 799)
    assert buffer.full() == frozenset()
    fill(buffer, "a", 1)
    assert buffer.full() == {"a"}


def test_a_lane_is_full_until_half_of_what_it_may_hold_is_free() -> None:
    buffer = shared()
    fill(buffer, "a", 800)
    full = buffer.full()
    runs = buffer.take_now("sync", lambda _: 200)
    buffer.release([(run, []) for run in runs[:10]])
    assert buffer.full(full) == {"a"}
    buffer.release([(run, []) for run in runs[10:]])
    assert buffer.full(full) == frozenset()


def test_the_only_lane_may_fill_all_of_it() -> None:
    buffer = Buffer(most_records=100, lanes={"a": LaneRules()})
    fill(buffer, "a", 99)
    assert buffer.full() == frozenset()
    fill(buffer, "a", 1)
    assert buffer.full() == {"a"}


@given(st.lists(st.tuples(st.sampled_from(LANES), st.integers(1, 40)), max_size=30))
def test_whatever_the_others_hold_an_empty_lane_is_never_full(fetched: list[tuple[str, int]]) -> None:
    buffer = shared(500)
    for lane, count in fetched:
        if lane != "c" and lane not in buffer.full():
            fill(buffer, lane, count)
    assert "c" not in buffer.full()
    assert buffer.records <= 500 + 40


def test_bytes_count_as_records_do() -> None:
    buffer = Buffer(most_bytes=100_000, lanes=dict.fromkeys(LANES, LaneRules()))
    fill(buffer, "a", 199)  # of 400 bytes each
    assert buffer.full() == frozenset()
    fill(buffer, "a", 1)
    assert buffer.full() == {"a"}


def test_what_waits_and_what_runs_is_told_by_lane() -> None:
    buffer = shared()
    fill(buffer, "a", 3)
    fill(buffer, "b", 2)
    runs = buffer.take_now("sync", lambda _: 2)
    waiting, _, running = buffer.look()
    assert (waiting["a"], running["a"]) == (1, 2)
    buffer.release([(run, []) for run in runs])
    waiting, _, running = buffer.look()
    assert (waiting["a"], running["a"], waiting["b"]) == (1, 0, 2)
