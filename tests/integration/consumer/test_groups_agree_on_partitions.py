"""Workers share the partitions by either of Kafka's protocols; nothing is lost, repeated or overtaken meanwhile."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Literal

import pytest

from onceward_consumer.app import App
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed
from onceward_consumer.worker import Worker
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

Protocol = Literal["classic", "consumer"]
BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])
KEYS = 20


def counting(services: Services, dsn: str, prefix: str) -> Group:
    app = App(app_name(prefix))

    @app.handler(Increment, lane=f"{prefix}counter", retry=fixed("300ms", attempts=3))
    def increment(command: Increment, ctx: Any) -> None:
        ctx.connection.execute(
            "insert into effect (counter, amount) values (%s, %s)", (command.counter, command.amount)
        )
        if command.amount % 7 == 3 and ctx.attempt == 1:
            raise Retry("not_yet")

    group = group_of(app, services, dsn)
    group.query("create table effect (seq bigint generated always as identity, counter text, amount int)")
    return group


def publish(group: Group, first: int, count: int) -> None:
    group.publish(Increment(counter=f"k{n % KEYS}", amount=n) for n in range(first, first + count))


def tenures(worker: Worker) -> list[Any]:
    return [] if worker._poller is None else worker._poller.tenures()


@BOTH
def test_a_worker_that_comes_and_goes_costs_nothing(
    services: Services, database: str, topic_prefix: str, protocol: Protocol
) -> None:
    group = counting(services, database, topic_prefix)
    with Forwarder(database, services.bootstrap), group.running(protocol=protocol) as first:
        eventually(first.ready, "ready worker")
        everything = len(tenures(first))
        publish(group, 0, 200)
        with group.running(protocol=protocol) as second:
            publish(group, 200, 200)
            eventually(lambda: tenures(second) and len(tenures(first)) < everything, "share of the second")
            publish(group, 400, 200)
            eventually(lambda: group.states().get("done", 0) > 400, "work of both")
            publish(group, 600, 200)
        eventually(lambda: len(tenures(first)) == everything, "return of the partitions")
        eventually(lambda: group.states() == {"done": 800} and group.settled(), "end")
    for key in range(KEYS):
        amounts = [
            row[0] for row in group.query("select amount from effect where counter = %s order by seq", f"k{key}")
        ]
        assert amounts == list(range(key, 800, KEYS))
    assert not group.count("select count(*) from onceward.attempts where outcome = 'crashed'")


@BOTH
def test_a_named_worker_that_is_back_soon_moves_nothing(
    services: Services, database: str, topic_prefix: str, protocol: Protocol
) -> None:
    group = counting(services, database, topic_prefix)
    named: dict[str, Any] = {"protocol": protocol, "session_timeout": timedelta(seconds=20)}
    with Forwarder(database, services.bootstrap), group.running(**named, instance="one") as one:
        eventually(one.ready, "ready worker")
        everything = len(tenures(one))
        other = group.worker(**named, instance="two")
        other.start()
        eventually(lambda: len(tenures(one)) + len(tenures(other)) == everything and tenures(other), "two shares")
        kept = tenures(one)
        addresses = {tenure.address for tenure in tenures(other)}
        other.stop()
        with group.running(**named, instance="two") as again:
            eventually(again.ready, "worker that is back")
            publish(group, 0, 200)
            eventually(lambda: group.states() == {"done": 200} and group.settled(), "end")
            assert {tenure.address for tenure in tenures(again)} == addresses, "it has its own again"
        assert tenures(one) == kept, "and the other has not noticed"


def test_the_consumer_protocol_is_told_nothing_that_the_broker_decides(
    services: Services, database: str, topic_prefix: str
) -> None:
    group = counting(services, database, topic_prefix)
    found = group.worker(protocol="consumer")._consumer_config()
    assert found["group.protocol"] == "consumer"
    assert not {"session.timeout.ms", "heartbeat.interval.ms", "partition.assignment.strategy"} & found.keys()
    assert group.worker()._consumer_config()["partition.assignment.strategy"] == "cooperative-sticky"
