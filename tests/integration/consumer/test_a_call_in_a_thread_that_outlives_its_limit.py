"""A synchronous call over its max_runtime has failed; its thread cannot be ended, but can change nothing any more."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.context import Context
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

EFFECT = "create table effect (seq bigint generated always as identity, counter text, amount int)"
STORE = "insert into effect (counter, amount) values (%s, %s)"


class Hang:
    """Makes handlers hang until it is over, and notes what became of those that did."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self.afterwards: list[str] = []
        self.over = threading.Event()

    def wait(self) -> None:
        self.over.wait(40)


@pytest.fixture
def hang() -> Iterator[Hang]:
    found = Hang()
    yield found
    found.over.set()


def build(services: Services, dsn: str, prefix: str, hang: Hang, **rules: Any) -> Group:
    app = App(app_name(prefix))
    given: dict[str, Any] = {"lane": f"{prefix}counter", "retry": fixed("200ms", attempts=2)} | rules

    @app.handler(Increment, **given)
    def increment(command: Increment, ctx: Context) -> None:
        hang.calls.append((command.counter, command.amount))
        if app.handlers["test.Increment"].mode != "external":
            ctx.connection.execute(STORE, (command.counter, command.amount))
        if command.note == "first" and ctx.attempt == 1:
            raise Retry("not_yet")
        if command.note == "query":
            ctx.connection.execute("select pg_sleep(40)").fetchall()
        if command.note != "hang":
            return
        hang.wait()
        for late in (
            lambda: ctx.publish(Increment(counter="late")),
            lambda: ctx.connection.execute(STORE, ("late", 0)).rowcount,
        ):
            try:
                late()
                hang.afterwards.append("done")
            except Exception as error:
                hang.afterwards.append(type(error).__name__)

    group = group_of(app, services, dsn, partitions=1)
    group.query(EFFECT)
    return group


def publish(group: Group, note: str, *, first: str | None = None) -> None:
    group.publish(
        Increment(counter=key, amount=n, note=note if (key, n) == ("a", 1) else first if (key, n) == ("a", 0) else None)
        for n in range(4)
        for key in "abc"
    )


def effects(group: Group, counter: str) -> list[int]:
    return [row[0] for row in group.query("select amount from effect where counter = %s order by seq", counter)]


def attempts(group: Group) -> list[tuple[Any, ...]]:
    return group.query("select attempt, outcome, reason from onceward.attempts order by command_id, attempt")


@pytest.mark.parametrize("what", ["hang", "query"])
def test_its_attempt_has_failed_and_others_are_done_at_no_cost(
    services: Services, database: str, topic_prefix: str, hang: Hang, what: str
) -> None:
    group = build(services, database, topic_prefix, hang, max_runtime="500ms")
    publish(group, what)
    with Forwarder(database, services.bootstrap), group.running(threads=2) as worker:
        eventually(lambda: group.states() == {"done": 11, "dead": 1} and group.settled(), "end", 20)
        assert attempts(group) == [(1, "failed", "max_runtime"), (2, "dead", "attempts_exhausted")]
        assert hang.calls.count(("a", 1)) == 2, "once an attempt"
        assert worker.alive()
        hang.over.set()
        eventually(lambda: worker._crew.abandoned == 0, "end of the threads")
    assert effects(group, "a") == [0, 2, 3]
    assert effects(group, "b") == effects(group, "c") == [0, 1, 2, 3]
    assert not effects(group, "late")
    assert "done" not in hang.afterwards


def test_a_single_thread_goes_on_with_the_next_keys(
    services: Services, database: str, topic_prefix: str, hang: Hang
) -> None:
    group = build(services, database, topic_prefix, hang, max_runtime="300ms")
    publish(group, "hang")
    with Forwarder(database, services.bootstrap), group.running(threads=1):
        eventually(lambda: group.states() == {"done": 11, "dead": 1} and group.settled(), "end", 20)
    assert effects(group, "c") == [0, 1, 2, 3]


def test_so_it_is_with_one_whose_turn_comes_behind_a_failed_head(
    services: Services, database: str, topic_prefix: str, hang: Hang
) -> None:
    group = build(services, database, topic_prefix, hang, max_runtime="500ms")
    publish(group, "hang", first="first")
    with Forwarder(database, services.bootstrap), group.running(threads=2):
        eventually(lambda: group.states() == {"done": 11, "dead": 1} and group.settled(), "end", 20)
    assert [row[2] for row in attempts(group)] == ["not_yet", "max_runtime", "attempts_exhausted"]
    assert effects(group, "a") == [0, 2, 3]


def test_without_a_limit_of_its_own_it_gets_that_of_its_transaction(
    services: Services, database: str, topic_prefix: str, hang: Hang
) -> None:
    group = build(services, database, topic_prefix, hang)
    publish(group, "hang")
    with Forwarder(database, services.bootstrap), group.running(threads=1, transaction_timeout=timedelta(seconds=1)):
        eventually(lambda: group.states() == {"done": 11, "dead": 1} and group.settled(), "end", 40)
    assert attempts(group) == [(1, "failed", "transaction_timeout"), (2, "dead", "attempts_exhausted")]
    assert effects(group, "a") == [0, 2, 3]


def test_when_too_many_hang_the_worker_ends_and_says_where(
    services: Services, database: str, topic_prefix: str, hang: Hang
) -> None:
    group = build(services, database, topic_prefix, hang, max_runtime="200ms")
    group.publish(Increment(counter=f"k{n}", note="hang") for n in range(3))
    with Forwarder(database, services.bootstrap), group.running(threads=1) as worker:
        eventually(lambda: not worker.alive(), "end of the worker")
        assert worker.ended
        assert "threads hang in handlers: test.Increment at" in str(worker.error)
        assert "test_a_call_in_a_thread_that_outlives_its_limit.py" in str(worker.error)


def test_an_external_call_is_given_up_and_its_slot_is_free(
    services: Services, database: str, topic_prefix: str, hang: Hang
) -> None:
    group = build(services, database, topic_prefix, hang, mode="external", concurrency=1, max_runtime="500ms")
    publish(group, "hang")
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 11, "dead": 1} and group.settled(), "end", 20)
        assert attempts(group) == [(1, "failed", "max_runtime"), (2, "dead", "attempts_exhausted")]
        hang.over.set()
        eventually(lambda: len(hang.afterwards) == 4, "end of the calls")
    assert "done" not in hang.afterwards, "a call that was given up publishes nothing"
    assert not group.count("select count(*) from onceward.workers"), "and keeps no lease"


def test_a_batch_is_taken_apart_to_find_whose_doing_it_was(
    services: Services, database: str, topic_prefix: str, hang: Hang
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(
        Increment,
        lane=f"{topic_prefix}counter",
        mode="batch",
        max_runtime="500ms",
        retry=fixed("200ms", attempts=2),
    )
    def store(commands: list[Increment], ctx: Any) -> None:
        for command in commands:
            hang.calls.append((command.counter, command.amount))
            ctx.connection.execute(STORE, (command.counter, command.amount))
        if any(command.note == "hang" for command in commands):
            hang.wait()

    group = group_of(app, services, database, partitions=1)
    group.query(EFFECT)
    publish(group, "hang")
    with Forwarder(database, services.bootstrap), group.running(threads=2):
        eventually(lambda: group.states() == {"done": 11, "dead": 1} and group.settled(), "end", 20)
    assert attempts(group) == [(1, "failed", "max_runtime"), (2, "dead", "attempts_exhausted")]
    assert effects(group, "a") == [0, 2, 3]
    assert effects(group, "b") == effects(group, "c") == [0, 1, 2, 3]
