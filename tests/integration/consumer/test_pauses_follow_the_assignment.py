"""A partition that was paused when it went to another worker, and comes back, is fetched when it should be."""

from __future__ import annotations

import threading
from typing import Any, Literal

import pytest

from onceward_consumer.app import App
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed
from onceward_consumer.worker import Worker
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

PARTITIONS = 4
Protocol = Literal["classic", "consumer"]
BOTH = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def count_of(worker: Worker) -> int:
    """How many partitions the worker has."""
    return 0 if worker._poller is None else len(worker._poller.tenures())


def waiting_in(worker: Worker) -> int:
    """How many partitions wait until their first record is due."""
    return 0 if worker._poller is None else sum(bool(tenure.waiting) for tenure in worker._poller.tenures())


@BOTH
def test_a_retry_that_changes_hands_twice_fires_when_due(
    services: Services, database: str, topic_prefix: str, protocol: Protocol
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", retry=fixed("8s", attempts=3))
    def increment(command: Increment, ctx: Any) -> None:
        if ctx.attempt == 1:
            raise Retry("not_yet")

    group = group_of(app, services, database, partitions=PARTITIONS)
    with Forwarder(database, services.bootstrap), group.running(protocol=protocol) as first:
        eventually(first.ready, "ready worker")
        everything = count_of(first)
        group.publish(Increment(counter=f"c{n}") for n in range(24))
        eventually(lambda: waiting_in(first) == PARTITIONS, "retry in each partition of the tier")
        with group.running(protocol=protocol), group.running(protocol=protocol):
            eventually(lambda: waiting_in(first) < PARTITIONS, "waiting partition that went to another")
        eventually(lambda: count_of(first) == everything, "return of the partitions")
        eventually(lambda: group.states() == {"done": 24} and group.settled(), "end of the retries", 20)
    assert group.count("select count(*) from onceward.attempts") == 24, "nothing is tried before it is due"


@BOTH
def test_a_full_workers_partitions_are_fetched_again_when_they_come_back(
    services: Services, database: str, topic_prefix: str, protocol: Protocol
) -> None:
    app = App(app_name(topic_prefix))
    gate = threading.Event()

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Any) -> None:
        gate.wait(25)

    group = group_of(app, services, database, partitions=PARTITIONS)
    with (
        Forwarder(database, services.bootstrap),
        group.running(threads=1, buffered_records=20, protocol=protocol) as first,
    ):
        eventually(first.ready, "ready worker")
        everything = count_of(first)
        group.publish(Increment(counter=f"c{n}") for n in range(400))
        poller = first._poller
        assert poller is not None
        eventually(lambda: poller._full, "full buffer")
        with group.running(threads=1, buffered_records=20, protocol=protocol) as second:
            eventually(lambda: count_of(first) + count_of(second) == everything > count_of(first), "shared group")
            gate.set()
            eventually(lambda: group.states() == {"done": 400}, "end of the first commands")
        eventually(lambda: count_of(first) == everything, "return of the partitions")
        group.publish(Increment(counter=f"c{n}") for n in range(100))
        eventually(lambda: group.states() == {"done": 500} and group.settled(), "end of the second commands", 15)
