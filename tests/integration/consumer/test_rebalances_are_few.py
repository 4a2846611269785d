"""Nothing that a worker does by itself makes its group share out the partitions again."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any, Literal

import pytest
from prometheus_client import REGISTRY

from onceward_consumer.app import App
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed
from onceward_consumer.worker import Worker
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def rebalances(name: str) -> float:
    kinds = ("assigned", "revoked", "lost")
    return sum(
        REGISTRY.get_sample_value("onceward_rebalances_total", {"group": name, "kind": kind}) or 0 for kind in kinds
    )


def share(worker: Worker) -> int:
    return 0 if worker._poller is None else len(worker._poller.tenures())


@BOTH
def test_a_call_that_is_longer_than_the_poll_interval_is_made_once(
    services: Services, database: str, topic_prefix: str, protocol: Literal["classic", "consumer"]
) -> None:
    app = App(app_name(topic_prefix))
    calls: list[str] = []

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Any) -> None:
        calls.append(command.counter)
        time.sleep(9 if command.note == "long" else 0)

    group = group_of(app, services, database)
    options: dict[str, Any] = {"protocol": protocol, "session_timeout": timedelta(seconds=6), "threads": 2}
    with (
        Forwarder(database, services.bootstrap),
        group.running(**options, kafka={"max.poll.interval.ms": 6_000}) as worker,
    ):
        eventually(worker.ready, "ready worker")
        before = rebalances(app.name)
        group.publish([Increment(counter="long", note="long"), *(Increment(counter=f"k{n}") for n in range(20))])
        eventually(lambda: group.states() == {"done": 21}, "end")
        assert rebalances(app.name) == before
    assert sorted(calls) == sorted(["long", *(f"k{n}" for n in range(20))])
    assert not group.count("select count(*) from onceward.attempts")


@BOTH
def test_commits_and_pauses_while_a_worker_joins_do_not_start_it_again(
    services: Services, database: str, topic_prefix: str, protocol: Literal["classic", "consumer"]
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", retry=fixed("200ms", attempts=3))
    def increment(command: Increment, ctx: Any) -> None:
        time.sleep(0.001)
        if command.amount % 5 == 0 and ctx.attempt == 1:
            raise Retry("not_yet")

    group = group_of(app, services, database)
    options: dict[str, Any] = {"protocol": protocol, "buffered_records": 50}
    with Forwarder(database, services.bootstrap), group.running(**options) as first:
        eventually(first.ready, "ready worker")
        everything = share(first)
        group.publish(Increment(counter=f"k{n % 40}", amount=n) for n in range(2_000))
        with group.running(**options) as second:
            eventually(lambda: share(second) and share(first) + share(second) == everything, "shares of both")
            settled = rebalances(app.name)
            eventually(lambda: group.states() == {"done": 2_000} and group.settled(), "end", 60)
            assert rebalances(app.name) == settled
