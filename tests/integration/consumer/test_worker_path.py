"""From a record to its effect: one transaction for ledger and effect, then the offset."""

from __future__ import annotations

from onceward_consumer.app import App
from onceward_consumer.context import Context
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services


def test_a_published_command_takes_effect_once(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Context) -> None:
        ctx.connection.execute("insert into effect values (%s, %s)", (command.counter, command.amount))

    group = group_of(app, services, database)
    group.query("create table effect (counter text, amount int)")
    group.publish(Increment(counter=f"c{n % 7}", amount=n) for n in range(100))
    with Forwarder(database, services.bootstrap), group.running() as worker:
        eventually(lambda: group.count("select count(*) from effect") == 100, "100 effects")
        eventually(worker.ready, "ready worker")
    assert group.states() == {"done": 100}
    assert group.count("select count(distinct amount) from effect") == 100
