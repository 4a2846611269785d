"""Batch handlers: many commands in one call and one transaction, each with an outcome of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.batch_context import AsyncBatchContext, BatchContext
from onceward_consumer.failures import Reject, Retry
from onceward_consumer.policy import fixed
from tests.support.commands import Increment
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
