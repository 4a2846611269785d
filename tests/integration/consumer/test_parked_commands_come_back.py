"""Commands parked for want of a handler or a schema run, once each, when the want is over."""

from __future__ import annotations

from typing import Any

from onceward_consumer.app import App
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

EFFECT = "create table effect (seq bigint generated always as identity, batch int)"


def test_a_command_waits_for_the_deployment_of_its_handler(
    services: Services, database: str, topic_prefix: str
) -> None:
    lane, name = f"{topic_prefix}counter", app_name(topic_prefix)
    old, new = App(name), App(name)

    @old.handler(Increment, lane=lane)
    @new.handler(Increment, lane=lane)
    def increment(command: Increment, ctx: Any) -> None:
        pass

    @new.handler(Settle, lane=lane)
    def settle(command: Settle, ctx: Any) -> None:
        ctx.connection.execute("insert into effect (batch) values (%s)", (command.batch,))

    later, before = group_of(new, services, database), group_of(old, services, database)
    before.query(EFFECT)
    later.publish(Settle(batch=n) for n in range(3))
    with Forwarder(database, services.bootstrap):
        with before.running():
            eventually(lambda: before.states() == {"parked": 3}, "parked commands")
        assert before.query("select distinct reason from onceward.parked") == [("unknown_type",)]
        with later.running():
            eventually(lambda: later.states() == {"done": 3} and later.settled(), "effects")
    assert sorted(row[0] for row in later.query("select batch from effect")) == [0, 1, 2]
