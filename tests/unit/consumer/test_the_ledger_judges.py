"""What the ledger knows of a command decides alone: nothing runs twice, nothing that must run is taken for a duplicate."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from onceward_consumer.ledger import BUSY_REST, Known, Proceed, judge
from onceward_consumer.outcomes import Busy, Duplicate

ENDED = ("done", "dead", "discarded")
STATES = (*ENDED, "retrying", "running", "parked")

rows = st.builds(
    Known,
    command_id=st.just(UUID(int=1)),
    state=st.sampled_from(STATES),
    attempt=st.integers(1, 9),
    attempts_before=st.integers(0, 9),
    first_failed_at=st.none(),
    incarnation=st.none() | st.just(UUID(int=9)),
    alive=st.booleans(),
)


@given(rows, st.integers(1, 10), st.booleans(), st.booleans())
def test_what_has_ended_never_runs_again(row: Known, attempt: int, released: bool, forgotten: bool) -> None:
    if row.state in ENDED:
        assert judge(row, attempt, released=released, forgotten=forgotten) == Duplicate(row.state)


@given(rows, st.integers(1, 10), st.booleans())
def test_an_attempt_never_goes_back_and_grows_by_a_crash_alone(row: Known, attempt: int, released: bool) -> None:
    verdict = judge(row, attempt, released=released)
    if isinstance(verdict, Proceed):
        assert verdict.attempt >= row.attempt
        assert verdict.crashed == (row.state == "running" and row.incarnation is not None)
        if verdict.crashed:
            assert verdict.attempt == row.attempt + 1
        if row.state == "retrying":
            assert verdict.attempt == attempt


@given(rows, st.integers(1, 10), st.booleans())
def test_what_another_live_worker_runs_waits(row: Known, attempt: int, released: bool) -> None:
    running = row._replace(state="running", incarnation=UUID(int=9), alive=True)
    assert judge(running, attempt, released=released) == Busy(BUSY_REST)
    assert isinstance(judge(running, attempt, released=released, forgotten=True), Proceed)


@given(rows, st.integers(1, 10))
def test_of_records_of_a_retry_only_the_newest_runs(row: Known, attempt: int) -> None:
    retrying = row._replace(state="retrying")
    assert isinstance(judge(retrying, attempt), Proceed) == (attempt >= row.attempt)
    assert judge(retrying, attempt, released=True) == Duplicate("stale_attempt")


@given(rows, st.integers(1, 10))
def test_what_is_parked_runs_when_it_is_released_and_not_before(row: Known, attempt: int) -> None:
    parked = row._replace(state="parked")
    assert judge(parked, attempt) == Duplicate("parked")
    assert judge(parked, attempt, released=True) == Proceed(row.attempt)
