"""A breaker opens for what speaks against its destination, rests longer each time, and lets one worker probe at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onceward_consumer.breakers import Breaker, Circuit, Tally, after, asked_seconds, in_window, probing
from onceward_consumer.failures import Permanent, Retry, Transient, classify
from onceward_schemas.errors import AppError

BREAKER = Breaker(failures=3, ratio=0.5, least=10, window="10s", open_for="2s", longest="8s")


def tally(*calls: bool, rest: float = 0.0, probe: Any = "") -> Tally:
    found = Tally(probe=probe)
    for good in calls:
        if good:
            found.success()
        else:
            found.failure("connection", rest)
    return found


def test_failures_in_a_row_open_it_whoever_saw_them() -> None:
    circuit = after(Circuit(), tally(False, False), BREAKER, 100.0)
    assert circuit.phase == "closed"
    circuit = after(circuit, tally(False), BREAKER, 100.1)
    assert (circuit.phase, circuit.until) == ("open", 102.1)
    assert "3 in a row" in circuit.reason


def test_a_success_between_them_does_not() -> None:
    circuit = Circuit()
    for _ in range(4):
        circuit = after(circuit, tally(False, False, True), replace_least(BREAKER), 100.0)
    assert circuit.phase == "closed"


def replace_least(breaker: Breaker) -> Breaker:
    return Breaker(failures=breaker.failures, least=1000)


def test_half_of_enough_calls_open_it() -> None:
    circuit = Circuit()
    for _ in range(4):
        circuit = after(circuit, tally(True, False), BREAKER, 100.0)
    assert circuit.phase == "closed", "eight calls say too little"
    assert after(circuit, tally(True, False), BREAKER, 100.0).phase == "open"


def test_what_is_older_than_the_window_does_not_count() -> None:
    circuit = after(Circuit(half=100.0), tally(*[True, False] * 4), BREAKER, 100.0)
    assert in_window(circuit, BREAKER, 100.0) == (8, 4)
    later = after(circuit, tally(True), BREAKER, 111.0)
    assert in_window(later, BREAKER, 111.0) == (1, 0)


def test_retry_after_opens_it_until_then() -> None:
    circuit = after(Circuit(), tally(False, rest=30.0), BREAKER, 100.0)
    assert (circuit.phase, circuit.until) == ("open", 130.0)


def test_a_failed_probe_opens_it_for_longer() -> None:
    circuit = Circuit("open", 0.0, 2.0, trips=1)
    waits = []
    for _ in range(5):
        now = circuit.until
        circuit = probing(circuit, "a", now, alive=True)
        assert circuit.phase == "half_open"
        circuit = after(circuit, tally(False, probe="bad"), BREAKER, now)
        waits.append(circuit.until - now)
    assert waits == [4.0, 8.0, 8.0, 8.0, 8.0]


def test_good_probes_close_it() -> None:
    breaker = Breaker(successes=2)
    circuit = probing(Circuit("open", 0.0, 2.0, trips=3), "a", 2.0, alive=True)
    circuit = after(circuit, tally(True, probe="good"), breaker, 2.1)
    assert (circuit.phase, circuit.prober) == ("half_open", "")
    circuit = after(probing(circuit, "b", 2.2, alive=False), tally(True, probe="good"), breaker, 2.3)
    assert (circuit.phase, circuit.trips) == ("closed", 0)


def test_nobody_probes_before_its_time_or_beside_another() -> None:
    circuit = Circuit("open", 0.0, 2.0, trips=1)
    assert probing(circuit, "a", 1.9, alive=True) == circuit
    circuit = probing(circuit, "a", 2.0, alive=True)
    assert probing(circuit, "b", 3.0, alive=True).prober == "a"
    assert probing(circuit, "b", 3.0, alive=False).prober == "b"


class Circuits(RuleBasedStateMachine):
    """Any order of outcomes and questions: at most one prober, never open for too long, never called while open."""

    def __init__(self) -> None:
        super().__init__()
        self.circuit, self.now = Circuit(), 1000.0

    @rule(calls=st.lists(st.booleans(), max_size=5), jitter=st.floats(0, 0.99), rest=st.sampled_from([0.0, 0.0, 20.0]))
    def outcomes(self, calls: list[bool], jitter: float, rest: float) -> None:
        before = self.circuit
        self.circuit = after(before, tally(*calls, rest=rest), BREAKER, self.now, jitter)
        if before.phase != "closed":
            assert self.circuit == before, "late calls say nothing about a destination that rests"

    @rule(worker=st.sampled_from("abc"), alive=st.booleans())
    def ask(self, worker: str, alive: bool) -> None:
        before = self.circuit
        self.circuit = probing(before, worker, self.now, alive=alive)
        if before.phase == "half_open" and before.prober and alive:
            assert self.circuit.prober == before.prober

    @rule(good=st.booleans())
    def probe(self, good: bool) -> None:
        if self.circuit.phase == "half_open" and self.circuit.prober:
            self.circuit = after(self.circuit, tally(good, probe="good" if good else "bad"), BREAKER, self.now)
            assert self.circuit.phase == ("closed" if good else "open")

    @rule(seconds=st.floats(0, 10))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def it_can_be_stored(self) -> None:
        assert Circuit.from_json(self.circuit.to_json()) == self.circuit

    @invariant()
    def it_rests_no_longer_than_it_may(self) -> None:
        if self.circuit.phase == "open":
            assert self.circuit.until - self.circuit.since <= 20.001


TestCircuits = Circuits.TestCase


class Answer(Exception):
    def __init__(self, status: int, after: str | None = None) -> None:
        self.status_code = status
        self.headers = {} if after is None else {"Retry-After": after}


@pytest.mark.parametrize(
    ("error", "against"),
    [
        (TimeoutError(), True),
        (ConnectionRefusedError(), True),
        (Answer(500), True),
        (Answer(503), True),
        (Answer(429), True),
        (Answer(404), False),
        (ValueError(), False),
        (Retry("not_loaded_yet"), False),
        (LookupError(), False),
    ],
)
def test_what_speaks_against_a_destination(error: Exception, against: bool) -> None:
    assert BREAKER.speaks_against(error, classify(error)) is against


def test_an_app_may_name_its_own() -> None:
    assert Breaker(counts=LookupError).speaks_against(KeyError(), Permanent("key_error"))


def test_only_429_and_503_say_for_how_long() -> None:
    assert asked_seconds(classify(Answer(503, "7"))) == 7.0
    assert asked_seconds(classify(Answer(429, "999999"))) == 3600.0
    assert asked_seconds(classify(Answer(500, "7"))) == 0.0
    assert asked_seconds(Transient("timeout")) == 0.0


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"failures": 0}, "failures is 0"),
        ({"ratio": 1.5}, "ratio is 1.5"),
        ({"open_for": "5m"}, "longest"),
        ({"window": "soon"}, "window is 'soon'"),
        ({"counts": "x"}, "counts has 'x'"),
    ],
)
def test_wrong_settings_are_named(given_: dict[str, Any], said: str) -> None:
    with pytest.raises(AppError, match=said):
        Breaker(**given_)


@given(st.lists(st.booleans(), min_size=1, max_size=30))
def test_it_does_not_matter_how_outcomes_are_told(calls: list[bool]) -> None:
    """One by one or together: the count in a row is the same."""
    breaker = Breaker(failures=1000, least=1000)
    one_by_one = Circuit(half=100.0)
    for good in calls:
        one_by_one = after(one_by_one, tally(good), breaker, 100.0)
    assert after(Circuit(half=100.0), tally(*calls), breaker, 100.0) == replace(one_by_one)
