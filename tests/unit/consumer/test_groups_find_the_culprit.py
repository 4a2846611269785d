"""A group's transaction that fails is run again in a slower mode, until the failure belongs to one command."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import DataError, errors

from onceward_consumer import settle
from onceward_consumer.clocks import DatabaseClock
from onceward_consumer.connections import NeedsResultError
from onceward_consumer.deliveries import Delivery
from onceward_consumer.failures import Reject, Retry
from onceward_consumer.groups import run_group, stop_followers
from onceward_consumer.handlers import Handler, Mode, Order
from onceward_consumer.items import Engine, Item
from onceward_consumer.moods import Mood
from onceward_consumer.outcomes import Busy, Dead, Done, Failed, Parked
from onceward_consumer.policy import fixed
from onceward_consumer.script import Begin, Call, Commit, Execute, Fetch, Rollback, Statement
from onceward_schemas.ids import new_id
from tests.support.commands import Increment


class Answer:
    """What a statement of the script gets: everything is new, nothing is held."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.count = len(rows)


Say = Callable[[Item, bool], BaseException | None]


def all_new(statements: Sequence[Statement]) -> list[Answer]:
    """What an empty database answers: every command that is claimed is new, and nothing else is found."""
    answers = [Answer([])] * len(statements)
    for n, statement in enumerate(statements):
        if "insert into onceward.ledger" in statement.query:
            ids = statement.params[0].strip("{}").split(",")
            answers[n] = Answer([(uuid.UUID(each),) for each in ids])
    return answers


def drive(
    script: Generator[Any, Any, Any],
    items: list[Item],
    say: Say,
    *,
    commit: Say | None = None,
    store: Say | None = None,
) -> list[str]:
    """Carry out a script without a database; returns the steps taken."""
    steps: list[str] = []
    answer: Any = None
    error: BaseException | None = None
    pipelined = False
    while True:
        try:
            step = script.send(answer) if error is None else script.throw(error)
        except StopIteration:
            return steps
        answer = error = None
        match step:
            case Begin():
                pipelined = step.pipelined
                steps.append("begin pipelined" if pipelined else "begin")
            case Fetch():
                answer = all_new(step.statements)
            case Call():
                steps.append(f"call {step.item.delivery.offset}")
                error = say(step.item, pipelined)
            case Commit():
                error = commit(items[0], pipelined) if commit else None
                steps.append("commit" if error is None else "commit fails")
            case Rollback():
                steps.append("rollback")
            case Execute():
                error = store(items[0], pipelined) if store else None


def group(keys: str, order: Order = "retry", mode: Mode = "transactional") -> tuple[list[Item], Engine]:
    handler = Handler(
        command=Increment,
        function=lambda c, x: None,
        lane="t",
        is_async=False,
        mode=mode,
        order=order,
        retry=fixed("1s", attempts=3),
    )
    engine = Engine(
        group="g", incarnation=uuid.uuid4(), worker="w", code_version=None, codec=None, clock=DatabaseClock(),  # type: ignore[arg-type]
        handlers={handler.type: handler}, reach=timedelta(days=30), lock_timeout=timedelta(seconds=1),
    )  # fmt: skip
    items = []
    for offset, key in enumerate(keys):
        identity = new_id()
        found = [("id", str(identity).encode()), ("type", handler.type.encode())]
        delivery = Delivery(
            topic="t", partition=0, offset=offset, timestamp_ms=0, key=key.encode(), payload=b"", headers=found, lane="t",  # type: ignore[arg-type]
            assignment=None, handlers=engine.handlers,
        )  # fmt: skip
        items.append(
            Item(delivery, identity, f"{identity.int:032x}", delivery.envelope, handler, Increment(counter=key))
        )
    return items, engine


def test_a_group_without_failures_is_one_transaction() -> None:
    items, engine = group("abc")
    assert drive(run_group(items, engine, Mood()), items, lambda i, p: None) == [
        "begin pipelined", "call 0", "call 1", "call 2", "commit",
    ]  # fmt: skip
    assert all(item.outcome == Done() for item in items)


def test_an_exception_of_the_handler_brings_savepoints_and_keeps_the_pipeline() -> None:
    items, engine = group("abab")
    steps = drive(run_group(items, engine, Mood()), items, lambda i, p: Retry("later") if i is items[1] else None)
    assert steps == [
        "begin pipelined", "call 0", "call 1", "rollback",
        "begin pipelined", "call 0", "call 1", "call 2", "commit",
    ]  # fmt: skip
    assert isinstance(items[1].outcome, Failed)
    assert items[3].outcome == Parked("held"), "the follower of the failed command"
    assert items[0].outcome == items[2].outcome == Done()


@pytest.mark.parametrize(("order", "follower"), [("retry", Done()), ("strict", Parked("held")), ("none", Done())])
def test_the_order_policy_decides_what_follows_a_dead_letter(order: Order, follower: object) -> None:
    items, engine = group("aa", order)
    drive(run_group(items, engine, Mood()), items, lambda i, p: Reject("no") if i is items[0] else None)
    assert isinstance(items[0].outcome, Dead)
    assert items[1].outcome == follower


def test_without_order_nobody_waits() -> None:
    items, engine = group("aa", "none")
    drive(run_group(items, engine, Mood()), items, lambda i, p: Retry() if i is items[0] else None)
    assert isinstance(items[0].outcome, Failed)
    assert items[1].outcome == Done()


def test_a_server_error_in_the_pipeline_is_nobodys_until_it_is_met_without() -> None:
    items, engine = group("abc")

    def say(item: Item, pipelined: bool) -> BaseException | None:
        if pipelined:  # it surfaces in the call after the culprit's
            return errors.UniqueViolation("twice") if item is items[2] else None
        return errors.UniqueViolation("twice") if item is items[1] else None

    steps = drive(run_group(items, engine, Mood()), items, say)
    assert [step for step in steps if step.startswith("begin")] == ["begin pipelined", "begin"]
    assert [type(item.outcome) for item in items] == [Done, Dead, Done]


def test_an_error_that_the_handler_wraps_is_still_the_servers() -> None:
    items, engine = group("ab")

    def say(item: Item, pipelined: bool) -> BaseException | None:
        if item is items[1] and pipelined:
            error = RuntimeError("wrapped")
            error.__cause__ = errors.UniqueViolation("of somebody else")
            return error
        return None

    mood = Mood()
    for _ in range(8):
        mood.note(raised=True, refused=False)
    steps = drive(run_group(items, engine, mood), items, say)
    assert steps[0] == "begin pipelined"
    assert "begin" in steps
    assert all(item.outcome == Done() for item in items)


def test_a_result_that_cannot_be_waited_for_ends_the_pipeline() -> None:
    items, engine = group("ab")
    steps = drive(run_group(items, engine, Mood()), items, lambda i, p: NeedsResultError() if p else None)
    assert steps[-4:] == ["begin", "call 0", "call 1", "commit"]
    assert all(item.outcome == Done() for item in items)


def test_a_deadlock_is_tried_again_as_it_was() -> None:
    items, engine = group("ab")
    left = [errors.DeadlockDetected("deadlock")] * 2
    steps = drive(run_group(items, engine, Mood()), items, lambda i, p: left.pop() if left else None)
    assert steps.count("rollback") == 2
    assert steps.count("begin pipelined") == 3
    assert all(item.outcome == Done() and item.attempt == 1 for item in items)


def test_a_commit_that_fails_is_charged_to_the_command_that_is_alone_with_it() -> None:
    items, engine = group("ab")
    current: list[Item] = []

    def say(item: Item, pipelined: bool) -> None:
        current.append(item)

    def commit(_: Item, pipelined: bool) -> BaseException | None:
        called, current[:] = list(current), []
        return errors.ForeignKeyViolation("deferred") if items[0] in called else None

    drive(run_group(items, engine, Mood()), items, say, commit=commit)
    assert isinstance(items[0].outcome, Dead)
    assert items[0].outcome.reason == "constraint_violation"
    assert items[1].outcome == Done()


def test_a_lock_that_does_not_come_free_costs_no_attempt_and_holds_up_its_key() -> None:
    items, engine = group("aab")
    steps = drive(
        run_group(items, engine, Mood()), items, lambda i, p: errors.LockNotAvailable("lock") if i is items[0] else None
    )
    assert isinstance(items[0].outcome, Busy)
    assert isinstance(items[1].outcome, Busy)
    assert items[2].outcome == Done()
    assert steps.count("call 1") == 0


def test_a_mood_that_saw_failures_begins_with_savepoints() -> None:
    mood = Mood()
    for _ in range(10):
        items, engine = group("ab")
        steps = drive(run_group(items, engine, mood), items, lambda i, p, bad=items[0]: Retry() if i is bad else None)  # type: ignore[misc]
    assert "rollback" not in steps
    assert isinstance(items[0].outcome, Failed)


@pytest.mark.parametrize("runs", [True, False])
def test_a_command_whose_headers_cannot_be_stored_is_a_dead_letter_without_them(runs: bool) -> None:
    items, engine = group("ab")
    if not runs:
        items[0].command, items[0].outcome = None, Dead("undecodable", "")
        items[0].given = items[0].outcome

    def store(item: Item, pipelined: bool) -> BaseException | None:
        return DataError("a header of the first") if item.envelope is not None else None

    def say(item: Item, pipelined: bool) -> BaseException | None:
        return Reject("no") if item is items[0] else None

    drive(run_group(items, engine, Mood()), items, say, store=store)
    assert isinstance(items[0].outcome, Dead)
    assert items[0].outcome.reason == "unstorable"
    assert items[1].outcome == Done()


def unresolved(item: Item, reason: str) -> None:
    item.given = item.outcome = Parked(reason)
    item.command = None
    if reason == "unknown_type":
        item.handler = item.delivery.handler = None


@pytest.mark.parametrize("reason", ["unknown_type", "schema_missing"])
def test_a_command_that_nobody_can_run_yet_heads_its_key(reason: str) -> None:
    items, engine = group("abaa")
    unresolved(items[0], reason)
    unresolved(items[3], "unknown_type")
    drive(run_group(items, engine, Mood()), items, lambda i, p: None)
    assert [item.outcome for item in items] == [Parked(reason), Done(), Parked("held"), Parked("held")]
    put, resolved = settle.holds_changed(items, datetime.now(UTC))
    assert put == {("t", "a"): ("retrying", items[0].id, None)}
    assert not resolved


def test_it_heads_nothing_behind_one_that_fails() -> None:
    items, engine = group("aa")
    unresolved(items[1], "unknown_type")
    drive(run_group(items, engine, Mood()), items, lambda i, p: Retry() if i is items[0] else None)
    assert items[1].outcome == Parked("held")
    put, _ = settle.holds_changed(items, datetime.now(UTC))
    assert put["t", "a"][1] == items[0].id


def test_it_heads_nothing_where_its_type_has_no_order() -> None:
    items, engine = group("aa", "none")
    unresolved(items[0], "schema_missing")
    drive(run_group(items, engine, Mood()), items, lambda i, p: None)
    assert [item.outcome for item in items] == [Parked("schema_missing"), Done()]
    assert settle.holds_changed(items, datetime.now(UTC)) == ({}, set())


def test_it_is_not_settled_while_one_before_it_is_leased() -> None:
    items, _ = group("abaa")
    unresolved(items[2], "schema_missing")
    stop_followers(items)
    assert [type(item.outcome) for item in items] == [type(None), type(None), Busy, Busy]
