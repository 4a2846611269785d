"""A handler that fails after its statements leaves none of them, also in the quickest way to run a group."""

from __future__ import annotations

from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.failures import Reject, Retry
from onceward_consumer.policy import fixed
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

STORE = "insert into effect (counter, amount) values (%s, %s)"
COUNT = 600


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_each_effect_is_there_once(services: Services, database: str, topic_prefix: str, mode: str) -> None:
    app = App(app_name(topic_prefix))
    rules: dict[str, Any] = {"lane": f"{topic_prefix}counter", "retry": fixed("200ms", attempts=3)}

    def fail(command: Increment, attempt: int) -> None:
        if command.amount % 97 == 5:
            raise Reject("never")
        if command.amount % 61 == 7 and attempt == 1:  # seldom, so that groups run without savepoints
            raise Retry("not_yet")

    if mode == "sync":

        @app.handler(Increment, **rules)
        def increment(command: Increment, ctx: Any) -> None:
            ctx.connection.execute(STORE, (command.counter, command.amount))
            fail(command, ctx.attempt)

    else:

        @app.handler(Increment, **rules)
        async def increment_async(command: Increment, ctx: Any) -> None:
            await ctx.connection.execute(STORE, (command.counter, command.amount))
            fail(command, ctx.attempt)

    group = group_of(app, services, database)
    group.query("create table effect (counter text, amount int)")
    group.publish(Increment(counter=f"k{n % 40}", amount=n) for n in range(COUNT))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: sum(group.states().values()) == COUNT and group.settled(), "end")
    effects = sorted(row[0] for row in group.query("select amount from effect"))
    assert effects == [n for n in range(COUNT) if n % 97 != 5]
