"""`ctx.effect_once`: of all the commands that ask for the effect of one business key, one applies it, whatever fails meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.context import AsyncContext, Context
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

TABLE = "create table effect (counter text, amount int)"
INSERT = "insert into effect (counter, amount) values (%s, %s)"
KEYS = 5


def prepared(app: App, services: Services, database: str) -> Group:
    group = group_of(app, services, database)
    group.query(TABLE)
    group.publish(Increment(counter=f"c{n}", amount=n) for n in range(60))
    return group


def check(group: Group) -> None:
    taken = dict(group.query("select mod(amount, 5), count(*) from effect group by 1"))
    assert taken == dict.fromkeys(range(KEYS), 1)
    assert group.count("select count(*) from onceward.effects") == KEYS


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_of_many_commands_for_one_key_one_takes_effect(
    services: Services, database: str, topic_prefix: str, kind: str
) -> None:
    """The first try of each business key fails after it has taken the key, which is free again then."""
    app = App(app_name(topic_prefix), retry=fixed("300ms", attempts=3))
    declare = app.handler(Increment, lane=f"{topic_prefix}counter")

    def fail_first(command: Increment, ctx: Any) -> None:
        if command.amount < KEYS and ctx.attempt == 1:
            raise Retry("later")

    def once(command: Increment, ctx: Context) -> None:
        if ctx.effect_once(f"bonus:{command.amount % KEYS}"):
            ctx.connection.execute(INSERT, (command.counter, command.amount))
        fail_first(command, ctx)

    async def once_async(command: Increment, ctx: AsyncContext) -> None:
        if await ctx.effect_once(f"bonus:{command.amount % KEYS}"):
            await ctx.connection.execute(INSERT, (command.counter, command.amount))
        fail_first(command, ctx)

    declare(once if kind == "sync" else once_async)
    group = prepared(app, services, database)
    with Forwarder(database, services.bootstrap), group.running(), group.running():
        eventually(lambda: group.states() == {"done": 60} and group.settled(), "end")
    check(group)


def test_a_key_that_cannot_be_stored_is_the_programs_error(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Context) -> None:
        ctx.effect_once("k" * 2000 if command.amount else "")

    group = prepared(app, services, database)
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"dead": 60}, "end")
    assert group.query("select distinct reason from onceward.dead_letters") == [("invalid_command_error",)]
