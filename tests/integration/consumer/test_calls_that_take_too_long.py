"""A transactional call that takes too long is a failed attempt of its own command; an outage is nobody's."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed, never
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

EFFECT = "create table effect (seq bigint generated always as identity, counter text, amount int)"
STORE = "insert into effect (counter, amount) values (%s, %s)"
SHORT = timedelta(seconds=1)
SLOW = 1.5
EVERY_MODE = pytest.mark.parametrize("mode", ["sync", "async"])


def build(services: Services, dsn: str, prefix: str, mode: str, calls: list[int], **given: Any) -> Group:
    app = App(app_name(prefix))
    rules: dict[str, Any] = {"lane": f"{prefix}counter", "retry": fixed("200ms", attempts=2)} | given
    if mode == "sync":

        @app.handler(Increment, **rules)
        def increment(command: Increment, ctx: Any) -> None:
            calls.append(command.amount)
            ctx.connection.execute(STORE, (command.counter, command.amount))
            what, _, seconds = (command.note or "").partition(" ")
            if what == "sleep":
                time.sleep(float(seconds))
            elif what == "query":
                ctx.connection.execute("select pg_sleep(%s)", (float(seconds),))
            elif what == "fail" and ctx.attempt == 1:
                raise Retry("not_yet")

    else:

        @app.handler(Increment, **rules)
        async def increment_async(command: Increment, ctx: Any) -> None:
            calls.append(command.amount)
            await ctx.connection.execute(STORE, (command.counter, command.amount))
            what, _, seconds = (command.note or "").partition(" ")
            if what == "sleep":
                await asyncio.sleep(float(seconds))
            elif what == "query":
                await (await ctx.connection.execute("select pg_sleep(%s)", (float(seconds),))).fetchall()
            elif what == "fail" and ctx.attempt == 1:
                raise Retry("not_yet")

    group = group_of(app, services, dsn, partitions=1)
    group.query(EFFECT)
    return group


def effects(group: Group, counter: str) -> list[int]:
    return [row[0] for row in group.query("select amount from effect where counter = %s order by seq", counter)]


def attempts(group: Group) -> list[tuple[Any, ...]]:
    return group.query("select attempt, outcome, reason from onceward.attempts order by command_id, attempt")


def publish(group: Group, note: str, *, first: str | None = None) -> None:
    group.publish(
        Increment(counter=key, amount=n, note=note if (key, n) == ("a", 1) else first if (key, n) == ("a", 0) else None)
        for n in range(4)
        for key in "abc"
    )


@EVERY_MODE
@pytest.mark.parametrize("what", ["sleep", "query"])
def test_a_call_that_outlives_its_transaction_costs_its_own_command_an_attempt(
    services: Services, database: str, topic_prefix: str, mode: str, what: str
) -> None:
    calls: list[int] = []
    group = build(services, database, topic_prefix, mode, calls)
    publish(group, f"{what} {SLOW}")
    with Forwarder(database, services.bootstrap), group.running(transaction_timeout=SHORT, threads=2, tasks=2):
        eventually(lambda: group.states() == {"done": 11, "dead": 1} and group.settled(), "end")
    assert attempts(group) == [(1, "failed", "transaction_timeout"), (2, "dead", "attempts_exhausted")]
    assert effects(group, "a") == [0, 2, 3]
    assert effects(group, "b") == effects(group, "c") == [0, 1, 2, 3]


@EVERY_MODE
def test_so_does_one_that_leaves_its_transaction_idle(
    services: Services, database: str, topic_prefix: str, mode: str
) -> None:
    group = build(services, database, topic_prefix, mode, [])
    publish(group, f"sleep {SLOW}")
    with Forwarder(database, services.bootstrap), group.running(idle_timeout=SHORT):
        eventually(lambda: group.states() == {"done": 11, "dead": 1} and group.settled(), "end")
    assert attempts(group) == [(1, "failed", "transaction_timeout"), (2, "dead", "attempts_exhausted")]
    assert effects(group, "a") == [0, 2, 3]


@EVERY_MODE
def test_so_does_one_whose_turn_comes_behind_a_failed_head(
    services: Services, database: str, topic_prefix: str, mode: str
) -> None:
    group = build(services, database, topic_prefix, mode, [])
    publish(group, f"sleep {SLOW}", first="fail")
    with Forwarder(database, services.bootstrap), group.running(transaction_timeout=SHORT):
        eventually(lambda: group.states() == {"done": 11, "dead": 1} and group.settled(), "end")
    assert [row[2] for row in attempts(group)] == ["not_yet", "transaction_timeout", "attempts_exhausted"]
    assert effects(group, "a") == [0, 2, 3]


@EVERY_MODE
def test_calls_that_are_too_long_together_cost_nothing(
    services: Services, database: str, topic_prefix: str, mode: str
) -> None:
    group = build(services, database, topic_prefix, mode, [])
    group.publish(Increment(counter="a", amount=n, note="sleep 0.3") for n in range(6))
    with Forwarder(database, services.bootstrap), group.running(transaction_timeout=SHORT, threads=1, tasks=1):
        eventually(lambda: group.states() == {"done": 6} and group.settled(), "end")
    assert not attempts(group)
    assert effects(group, "a") == list(range(6))


@EVERY_MODE
def test_a_session_that_the_server_ends_costs_nothing(
    services: Services, database: str, topic_prefix: str, mode: str
) -> None:
    calls: list[int] = []
    group = build(services, database, topic_prefix, mode, calls)
    publish(group, "sleep 0.8")
    with Forwarder(database, services.bootstrap), group.running(transaction_timeout=SHORT):
        for times in (1, 2):
            eventually(lambda times=times: calls.count(1) >= times, "call")  # type: ignore[misc]
            group.query(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and application_name like 'onceward worker%%'"
            )
        eventually(lambda: group.states() == {"done": 12} and group.settled(), "end")
    assert not attempts(group)
    assert effects(group, "a") == [0, 1, 2, 3]


@pytest.mark.parametrize("what", ["sleep", "query"])
def test_an_asynchronous_call_ends_with_its_max_runtime(
    services: Services, database: str, topic_prefix: str, what: str
) -> None:
    group = build(services, database, topic_prefix, "async", [], max_runtime="300ms")
    publish(group, f"{what} 20")
    with Forwarder(database, services.bootstrap), group.running():
        started = time.monotonic()
        eventually(lambda: group.states() == {"done": 11, "dead": 1} and group.settled(), "end")
    assert time.monotonic() - started < 15
    assert attempts(group) == [(1, "failed", "max_runtime"), (2, "dead", "attempts_exhausted")]
    assert effects(group, "a") == [0, 2, 3]
    assert effects(group, "b") == effects(group, "c") == [0, 1, 2, 3]


def test_an_asynchronous_call_that_hangs_without_a_limit_ends_after_its_transaction(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", retry=never)
    async def increment(command: Increment, ctx: Any) -> None:
        await ctx.connection.execute(STORE, (command.counter, command.amount))
        if command.note:
            await asyncio.Event().wait()

    group = group_of(app, services, database, partitions=1)
    group.query(EFFECT)
    publish(group, "hang")
    with Forwarder(database, services.bootstrap), group.running(transaction_timeout=SHORT, tasks=1):
        eventually(lambda: group.states() == {"done": 11, "dead": 1} and group.settled(), "end")
    assert effects(group, "a") == [0, 2, 3]
    assert [row[0] for row in group.query("select reason from onceward.dead_letters")] == ["attempts_exhausted"]
