"""A batch is one call; what is not done in it, or raises, is found out without cost to the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from psycopg import errors

from onceward_consumer.batch_context import NamedError, conclude
from onceward_consumer.batches import run_batch
from onceward_consumer.failures import Discard, Reject, Retry
from onceward_consumer.handlers import Order
from onceward_consumer.items import Engine, Item
from onceward_consumer.outcomes import Busy, Dead, Discarded, Done, Failed, Parked
from onceward_consumer.script import Begin, Call, Commit, Execute, Fetch, Rollback, Script
from onceward_schemas.errors import AppError
from tests.unit.consumer.test_groups_find_the_culprit import all_new, group

Say = Callable[[Sequence[Item]], BaseException | list[Exception | None] | None]
"""What the handler does with a batch: raises, or returns."""


def drive(script: Script[None], say: Say) -> list[str]:
    """Carry out a script without a database; returns what was called, committed and undone."""
    steps: list[str] = []
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = script.send(answer) if error is None else script.throw(error)
        except StopIteration:
            return steps
        answer = error = None
        match step:
            case Fetch():
                answer = all_new(step.statements)
            case Call():
                batch = step.batch or (step.item,)
                steps.append("".join(str(item.delivery.offset) for item in batch))
                handler = batch[0].handler
                assert handler is not None
                try:
                    if isinstance(said := say(batch), BaseException):
                        raise said
                    conclude(said, batch, handler)
                except BaseException as raised:
                    error = raised
            case Commit() | Rollback():
                steps.append(type(step).__name__.lower())
            case Begin() | Execute():
                pass


def batch(keys: str, order: Order = "retry") -> tuple[list[Item], Engine]:
    return group(keys, order, mode="batch")


def outcomes(items: Sequence[Item]) -> list[type]:
    return [type(item.outcome) for item in items]


def of(items: list[Item], said: dict[int, Exception]) -> Say:
    """A handler that names what is said of some items."""
    return lambda batch: [said.get(items.index(item)) for item in batch]


def test_a_batch_without_failures_is_one_call_and_one_transaction() -> None:
    items, engine = batch("abca")
    assert drive(run_batch(items, engine), lambda b: None) == ["0123", "commit"]
    assert outcomes(items) == [Done] * 4


def test_what_is_named_is_undone_and_the_others_are_called_again() -> None:
    items, engine = batch("abcd")
    said = {1: Reject("never"), 2: Discard("gone"), 3: Retry("later")}
    assert drive(run_batch(items, engine), of(items, said)) == ["0123", "rollback", "0", "commit"]
    assert outcomes(items) == [Done, Dead, Discarded, Failed]
    assert [item.attempt for item in items] == [1, 1, 1, 1]


def test_who_is_named_later_is_undone_too() -> None:
    items, engine = batch("abc")

    def first_only(called: Sequence[Item]) -> list[Exception | None]:
        bad = [item for item in called if item is not items[2]]
        return [Reject("no") if bad and item is bad[0] else None for item in called]

    assert drive(run_batch(items, engine), first_only) == ["012", "rollback", "12", "rollback", "2", "commit"]
    assert outcomes(items) == [Dead, Dead, Done]


@pytest.mark.parametrize(
    ("order", "said", "followers"),
    [
        ("retry", Retry("later"), Parked("held")),
        ("retry", Reject("no"), Done()),
        ("strict", Reject("no"), Parked("held")),
        ("none", Retry("later"), Done()),
    ],
)
def test_followers_of_what_is_named_wait_as_their_order_says(order: Order, said: Exception, followers: object) -> None:
    items, engine = batch("abaa", order)
    drive(run_batch(items, engine), of(items, {0: said}))
    assert items[1].outcome == Done()
    assert items[2].outcome == items[3].outcome == followers


def test_nothing_is_named_where_everything_waits() -> None:
    items, engine = batch("aa")
    assert drive(run_batch(items, engine), of(items, {0: Retry()})) == ["01", "rollback", "commit"]
    assert outcomes(items) == [Failed, Parked]


def test_an_exception_is_narrowed_down_in_order() -> None:
    items, engine = batch("abcdefgh")
    steps = drive(run_batch(items, engine), lambda b: KeyError() if items[5] in b else None)
    assert steps == [
        "01234567", "rollback", "0123", "commit", "4567", "rollback", "45", "rollback", "4", "commit", "5", "commit",
        "67", "commit",
    ]  # fmt: skip
    assert outcomes(items) == [Done] * 5 + [Dead, Done, Done]


def test_a_deadlock_is_tried_again_as_it_was() -> None:
    items, engine = batch("abc")
    left = [errors.DeadlockDetected("deadlock"), RuntimeError("wrapped")]
    left[1].__cause__ = errors.SerializationFailure("conflict")
    assert drive(run_batch(items, engine), lambda b: left.pop() if left else None) == [
        "012", "rollback", "012", "rollback", "012", "commit",
    ]  # fmt: skip


def test_a_lock_that_does_not_come_free_costs_no_attempt_and_holds_up_its_key() -> None:
    items, engine = batch("aab")
    steps = drive(run_batch(items, engine), lambda b: errors.LockNotAvailable("lock") if items[0] in b else None)
    assert outcomes(items) == [Busy, Busy, Done]
    assert "1" not in steps


def test_whoever_lost_a_connection_before_is_called_alone() -> None:
    items, engine = batch("abc")
    engine.losses[items[1].id] = 1
    assert drive(run_batch(items, engine), lambda b: None) == ["0", "commit", "1", "commit", "2", "commit"]
    assert not engine.losses


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (3, "returned a value of type int"),
        ({0: Retry()}, "returned a value of type dict"),
        ([None], "returned 1 outcomes for 2 commands"),
        ([None, "no"], "returned a value of type str for command 2 of 2"),
        ([Retry, None], "returned the class Retry for command 1 of 2"),
    ],
)
def test_an_answer_that_means_nothing_is_refused_by_name(answer: Any, words: str) -> None:
    items, _ = batch("ab")
    assert items[0].handler is not None
    with pytest.raises(AppError, match=f"The batch handler .*{words}.*Return None") as caught:
        conclude(answer, items, items[0].handler)
    assert caught.value.remedy


def test_what_is_said_of_one_alone_counts_as_raised() -> None:
    items, _ = batch("a")
    assert items[0].handler is not None
    conclude((None,), items, items[0].handler)
    with pytest.raises(Retry):
        conclude([Retry()], items, items[0].handler)


def test_any_exception_may_be_said() -> None:
    items, _ = batch("abc")
    assert items[0].handler is not None
    error = TimeoutError()
    with pytest.raises(NamedError) as caught:
        conclude([None, error, None], items, items[0].handler)
    assert caught.value.outcomes == {1: error}
