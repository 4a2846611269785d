"""What a handler sets on ctx.connection, a row factory say, is its own: neither the engine nor the next handler meets it."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from onceward_consumer.app import App
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

COUNT = 60
STORE = "insert into effect (amount) values (%s) returning amount"


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_it_ends_with_the_call(services: Services, database: str, topic_prefix: str, mode: str) -> None:
    met: list[Any] = []
    app = App(app_name(topic_prefix), retry=fixed("200ms", attempts=3))

    def fail(command: Increment, attempt: int) -> None:
        if command.amount % 20 == 7 and attempt == 1:
            raise Retry("not_yet")

    if mode == "sync":

        @app.handler(Increment, lane=f"{topic_prefix}lane")
        def increment(command: Increment, ctx: Any) -> None:
            connection = ctx.connection
            met.append(connection.execute(STORE, (command.amount,)).fetchone())
            connection.row_factory = dict_row
            connection.cursor_factory = psycopg.ClientCursor
            assert connection.execute("select 1 as one").fetchall() == [{"one": 1}]
            fail(command, ctx.attempt)

    else:

        @app.handler(Increment, lane=f"{topic_prefix}lane")
        async def increment_async(command: Increment, ctx: Any) -> None:
            connection = ctx.connection
            met.append(await (await connection.execute(STORE, (command.amount,))).fetchone())
            connection.row_factory = dict_row
            connection.cursor_factory = psycopg.AsyncClientCursor
            assert await (await connection.execute("select 1 as one")).fetchall() == [{"one": 1}]
            fail(command, ctx.attempt)

    group = group_of(app, services, database)
    group.query("create table effect (amount int)")
    for part in range(3):
        group.publish(Increment(counter=f"c{n}", amount=n + part * COUNT) for n in range(COUNT))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: sum(group.states().values()) == 3 * COUNT and group.settled(), "end")
    assert group.states() == {"done": 3 * COUNT}
    assert group.count("select count(distinct amount) from effect") == 3 * COUNT
    assert {type(row) for row in met} == {tuple}
