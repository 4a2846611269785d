"""The sum of permits never exceeds the limit, no worker starves, and no more calls begin in a window than a rate allows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onceward_consumer.allotments import Bucket, Share, draw, fair_share, permits
from onceward_consumer.limits import LIFE_SECONDS, Rate


@given(st.integers(0, 50), st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(0, 9))
def test_shares_are_fair(limit: int, wanted: list[int], turn: int) -> None:
    shares = [fair_share(limit, wanted, index, turn) for index in range(len(wanted))]
    assert sum(shares) == min(limit, sum(wanted)), "nothing is left lying, nothing is given twice"
    for share, want in zip(shares, wanted, strict=True):
        assert share <= want
        if share < want:
            assert share >= max(shares) - 1, "whoever wants more has no less than anybody else"


@given(st.integers(1, 4), st.integers(2, 6))
def test_everybody_has_a_turn_where_there_are_fewer_permits_than_workers(limit: int, workers: int) -> None:
    turns = [[fair_share(limit, [1] * workers, index, turn) for turn in range(workers)] for index in range(workers)]
    assert all(any(each) for each in turns)


class Sharing(RuleBasedStateMachine):
    """Some workers ask in any order; each begins calls with what it was given; the limit changes."""

    def __init__(self) -> None:
        super().__init__()
        self.limit, self.clock = 5, 0.0
        self.held = [0] * 4
        self.wanted = [0] * 4
        self.running = [0] * 4
        self.dead = [False] * 4
        self.lowered = False

    @rule(worker=st.integers(0, 3), wanted=st.integers(0, 8))
    def ask(self, worker: int, wanted: int) -> None:
        if self.dead[worker]:
            return
        self.wanted[worker] = max(wanted, self.running[worker])
        others = [Share(str(n), self.held[n], self.wanted[n]) for n in range(4) if n != worker and not self.dead[n]]
        self.held[worker] = permits(
            self.limit, str(worker), self.running[worker], self.wanted[worker], others, self.clock
        )
        assert self.held[worker] >= self.running[worker]

    @rule(worker=st.integers(0, 3))
    def begin(self, worker: int) -> None:
        if not self.dead[worker] and self.running[worker] < min(self.held[worker], self.limit):
            self.running[worker] += 1
            assert sum(self.running) <= self.limit or self.lowered

    @rule(worker=st.integers(0, 3))
    def end(self, worker: int) -> None:
        self.running[worker] = max(0, self.running[worker] - 1)

    @rule(worker=st.integers(0, 3))
    def die(self, worker: int) -> None:
        self.dead[worker], self.held[worker], self.running[worker] = True, 0, 0

    @rule(limit=st.integers(0, 8))
    def change(self, limit: int) -> None:
        self.lowered = self.lowered or limit < self.limit
        self.limit = limit

    @rule(seconds=st.floats(0, 3))
    def wait(self, seconds: float) -> None:
        self.clock += seconds

    @invariant()
    def the_sum_holds(self) -> None:
        assert sum(self.held) <= self.limit or self.lowered
        if sum(self.held) <= self.limit:
            self.lowered = False


TestSharing = Sharing.TestCase


@given(
    st.integers(1, 300),
    st.sampled_from([1, 10, 60, 3600]),
    st.lists(st.tuples(st.floats(0, 2), st.integers(0, 50), st.booleans()), max_size=25),
    st.floats(0.05, 20),
)
def test_no_window_has_more_than_the_rate_says(
    count: int, seconds: int, steps: Sequence[tuple[float, int, bool]], window: float
) -> None:
    """Each step takes some tokens; those of the step before are used just before they are void, or go back."""
    rate = Rate(count, timedelta(seconds=seconds))
    bucket, now = Bucket(), 1000.0
    used: list[float] = []
    before: tuple[int, float] | None = None
    for pause, wanted, back in steps:
        now += pause
        given_back: list[tuple[int, float]] = []
        if before is not None and back:
            given_back = [before]
        elif before is not None:
            used += [min(now, before[1] + LIFE_SECONDS)] * before[0]
        tokens, bucket, _ = draw(bucket, rate, now, wanted, given_back)
        assert tokens <= max(1, rate.per_second * 0.2)
        before = (tokens, now) if tokens else None
    for start in used:
        assert sum(1 for each in used if start <= each < start + window) <= rate.most_in(window) + 1e-6


def test_one_a_minute_comes_once_a_minute() -> None:
    rate = Rate(1, timedelta(minutes=1))
    bucket, taken = Bucket(), []
    for second in range(200):
        tokens, bucket, _ = draw(bucket, rate, 5.0 + second, 3)
        taken += [second] * tokens
    assert taken == [0, 60, 120, 180]


@pytest.mark.parametrize("jump", [-3600.0, 3600.0, 86_400.0])
def test_a_clock_that_jumps_gives_no_more_than_a_burst(jump: float) -> None:
    rate = Rate(10, timedelta(seconds=1))
    _, bucket, _ = draw(Bucket(), rate, 100_000.0, 5)
    total = 0
    for _ in range(20):
        tokens, bucket, _ = draw(bucket, rate, 100_000.0 + jump, 5)
        total += tokens
    assert total <= rate.burst
