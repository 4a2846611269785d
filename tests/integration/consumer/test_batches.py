"""Batch handlers: many commands in one call and one transaction, each with an outcome of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from onceward_consumer.app import App
from onceward_consumer.batch_context import AsyncBatchContext, BatchContext
from onceward_consumer.failures import Reject, Retry
from onceward_consumer.policy import fixed
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

EFFECT = "create table effect (seq bigint generated always as identity, counter text, amount int, attempt int)"
INSERT = "insert into effect (counter, amount, attempt) select * from unnest(%s::text[], %s::int[], %s::int[])"
Say = Any
"""From a command and its context to None, or to what the handler says of it; what it raises it raises for the batch."""


def columns(commands: Sequence[Increment], ctx: Any) -> tuple[list[Any], ...]:
    return [c.counter for c in commands], [c.amount for c in commands], [item.attempt for item in ctx.items]


def build(
    services: Services, dsn: str, prefix: str, say: Say, sizes: list[int], *, is_async: bool = False, **rules: Any
) -> Group:
    app = App(app_name(prefix))
    given: dict[str, Any] = {"lane": f"{prefix}counter", "retry": fixed("300ms", attempts=3)} | rules

    if is_async:

        @app.handler(Increment, mode="batch", **given)
        async def increment_async(commands: Sequence[Increment], ctx: AsyncBatchContext) -> list[Exception | None]:
            sizes.append(len(commands))
            await ctx.connection.execute(INSERT, columns(commands, ctx))
            return [say(*each) for each in zip(commands, ctx.items, strict=True)]
    else:

        @app.handler(Increment, mode="batch", **given)
        def increment(commands: Sequence[Increment], ctx: BatchContext) -> list[Exception | None]:
            sizes.append(len(commands))
            ctx.connection.execute(INSERT, columns(commands, ctx))
            return [say(*each) for each in zip(commands, ctx.items, strict=True)]

    group = group_of(app, services, dsn)
    group.query(EFFECT)
    return group


def amounts(group: Group, counter: str) -> list[int]:
    return [row[0] for row in group.query("select amount from effect where counter = %s order by seq", counter)]


@pytest.mark.parametrize("is_async", [False, True])
def test_many_commands_are_one_call(services: Services, database: str, topic_prefix: str, is_async: bool) -> None:
    sizes: list[int] = []
    group = build(services, database, topic_prefix, lambda command, ctx: None, sizes, is_async=is_async, batch_size=50)
    group.publish(Increment(counter=f"c{n % 40}", amount=n) for n in range(2_000))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 2_000} and group.settled(), "all effects")
    for key in range(40):
        assert amounts(group, f"c{key}") == list(range(key, 2_000, 40))
    assert max(sizes) == 50
    assert len(sizes) < 200


@pytest.mark.parametrize("is_async", [False, True])
def test_what_the_handler_names_has_no_effect_and_its_followers_wait(
    services: Services, database: str, topic_prefix: str, is_async: bool
) -> None:
    def say(command: Increment, ctx: Any) -> Exception | None:
        if command.counter == "a" and command.amount == 2 and ctx.attempt < 3:
            return Retry("not_yet")
        return Reject("never") if (command.counter, command.amount) == ("b", 1) else None

    group = build(services, database, topic_prefix, say, [], is_async=is_async)
    group.publish(Increment(counter=key, amount=n) for n in range(5) for key in "abc")
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 14, "dead": 1} and group.settled(), "end")
    assert amounts(group, "a") == amounts(group, "c") == list(range(5))
    assert amounts(group, "b") == [0, 2, 3, 4]
    assert group.query("select attempt, outcome, reason from onceward.attempts order by outcome, attempt") == [
        (1, "dead", "never"),
        (1, "failed", "not_yet"),
        (2, "failed", "not_yet"),
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_an_exception_costs_the_command_that_is_alone_with_it(
    services: Services, database: str, topic_prefix: str, is_async: bool
) -> None:
    def say(command: Increment, ctx: Any) -> None:
        if command.amount == 17:
            raise KeyError("a bug")

    group = build(services, database, topic_prefix, say, [], is_async=is_async)
    group.publish(Increment(counter=f"c{n % 5}", amount=n) for n in range(100))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 99, "dead": 1} and group.settled(), "end")
    assert group.query("select reason, attempts from onceward.dead_letters") == [("key_error", 1)]
    assert group.count("select count(*) from onceward.attempts") == 1
    assert amounts(group, "c2") == [n for n in range(2, 100, 5) if n != 17]


@pytest.mark.parametrize("is_async", [False, True])
def test_followers_come_in_batches_too(services: Services, database: str, topic_prefix: str, is_async: bool) -> None:
    def say(command: Increment, ctx: Any) -> Exception | None:
        return Retry("not_yet") if command.amount == 0 and ctx.attempt == 1 else None

    sizes: list[int] = []
    group = build(services, database, topic_prefix, say, sizes, is_async=is_async, batch_size=25)
    group.publish(Increment(counter="a", amount=n) for n in range(60))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 60} and group.settled(), "end")
    assert amounts(group, "a") == list(range(60))
    assert max(sizes) <= 25
    assert len(sizes) < 15


def test_follow_ups_and_items_belong_to_their_command(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))
    seen: list[tuple[str, int]] = []

    @app.handler(Increment, lane=f"{topic_prefix}counter", mode="batch", retry=fixed("300ms", attempts=2))
    def increment(commands: Sequence[Increment], ctx: BatchContext) -> list[Reject | None]:
        for command, item in zip(commands, ctx.items, strict=True):
            item.publish(Settle(batch=command.amount))
            seen.append((item.idempotency_key, command.amount))
        return [Reject("no") if command.amount == 3 else None for command in commands]

    @app.handler(Settle, lane=f"{topic_prefix}settle", mode="batch")
    def settle(commands: Sequence[Settle], ctx: BatchContext) -> None:
        causes = [item.envelope.context.causation_id for item in ctx.items]
        ctx.connection.execute(
            "insert into effect (counter, amount) select * from unnest(%s::text[], %s::int[])",
            ([str(cause) for cause in causes], [command.batch for command in commands]),
        )

    group = group_of(app, services, database)
    group.query(EFFECT)
    group.relane()
    ids = group.publish((Increment(counter="a", amount=n) for n in range(6)), tenant="acme")
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.count("select count(*) from effect") == 5 and group.settled(), "follow-ups")
    found = group.query("select amount, counter from effect order by amount")
    assert found == [(n, str(ids[n])) for n in range(6) if n != 3]
    assert set(seen) == {(str(identity), n) for n, identity in enumerate(ids)}


def test_an_answer_of_the_wrong_length_is_said_in_the_dead_letters(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", mode="batch")
    def increment(commands: Sequence[Increment], ctx: BatchContext) -> list[Exception]:
        return []

    group = group_of(app, services, database)
    group.publish(Increment(counter="a", amount=n) for n in range(3))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"dead": 3} and group.settled(), "dead letters")
    [(reason, error)] = group.query("select distinct reason, error from onceward.dead_letters")
    assert reason == "app_error"
    assert "returned 0 outcomes for 1 commands" in error


def test_a_batch_that_commits_is_told_so(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", mode="batch")
    def increment(commands: Sequence[Increment], ctx: BatchContext) -> None:
        if any(command.amount == 1 for command in commands):
            ctx.connection.commit()

    group = group_of(app, services, database)
    group.publish(Increment(counter=f"c{n}", amount=n) for n in range(4))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 3, "dead": 1} and group.settled(), "end")
    assert group.query("select reason from onceward.dead_letters") == [("transaction_misuse",)]


def test_what_the_server_refuses_costs_its_own_command(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", mode="batch")
    def increment(commands: Sequence[Increment], ctx: BatchContext) -> None:
        ctx.connection.execute("insert into only_once select unnest(%s::int[])", ([c.amount // 2 for c in commands],))

    group = group_of(app, services, database)
    group.query("create table only_once (id int primary key deferrable initially deferred)")
    group.publish(Increment(counter="a", amount=n) for n in (0, 2, 3, 4, 6))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 4, "dead": 1} and group.settled(), "end")
    assert group.query("select reason from onceward.dead_letters") == [("constraint_violation",)]
    assert group.query("select id from only_once order by id") == [(0,), (1,), (2,), (3,)]


def test_a_connection_lost_in_a_batch_costs_no_attempt(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))
    ends = [True]

    @app.handler(Increment, lane=f"{topic_prefix}counter", mode="batch")
    def increment(commands: Sequence[Increment], ctx: BatchContext) -> None:
        ctx.connection.execute(INSERT, columns(commands, ctx))
        if ends:
            ends.pop()
            with contextlib.suppress(psycopg.Error):
                ctx.connection.execute("select pg_terminate_backend(pg_backend_pid())")

    group = group_of(app, services, database)
    group.query(EFFECT)
    group.publish(Increment(counter="a", amount=n) for n in range(10))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 10} and group.settled(), "end")
    assert amounts(group, "a") == list(range(10))
    assert not group.count("select count(*) from onceward.attempts")
