"""A retry record that comes before its instant is sent round, and runs once, also if the ledger does not know its command."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from onceward_consumer.app import App
from onceward_consumer.context import AsyncContext, Context
from onceward_consumer.policy import fixed
from onceward_producer.rows import INSERT_MANY, arrays, row
from onceward_schemas import topics
from onceward_schemas.envelope import Context as About
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services


@pytest.mark.parametrize("mode", ["transactional", "external"])
def test_it_runs_once(services: Services, database: str, topic_prefix: str, mode: str) -> None:
    app, lane = App(app_name(topic_prefix)), f"{topic_prefix}counter"
    attempts: list[int] = []
    if mode == "external":

        @app.handler(Increment, lane=lane, retry=fixed("300ms", attempts=3), mode="external")
        async def call(command: Increment, ctx: AsyncContext) -> None:
            attempts.append(ctx.attempt)
    else:

        @app.handler(Increment, lane=lane, retry=fixed("300ms", attempts=3))
        def run(command: Increment, ctx: Context) -> None:
            attempts.append(ctx.attempt)

    group = group_of(app, services, database)
    due_at = datetime.now(UTC) + timedelta(seconds=4)
    early = row(Increment(counter="a"), group.codec)._replace(
        topic=topics.tier(lane, app.name, timedelta(milliseconds=300)),
        attempt=2,
        context=About(due_at=due_at, group=app.name).to_json(),
    )
    with psycopg.connect(database) as connection:
        connection.execute(INSERT_MANY, arrays([early]))
    with Forwarder(database, services.bootstrap) as forwarder, group.running():
        eventually(lambda: group.states() == {"done": 1} and group.settled() and attempts, "its run")
        assert datetime.now(UTC) >= due_at
    assert len(forwarder.forwarded) > 1, "it was not sent round, so this proves nothing"
    assert attempts == [2]
