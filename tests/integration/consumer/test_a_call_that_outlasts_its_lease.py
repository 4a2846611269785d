"""A call may take longer than a lease: the heartbeat extends it, and a worker to which the record goes meanwhile waits.

What a heartbeat that fails to extend it leads to is told in test_external.py: the command is taken over.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

from onceward_consumer.app import App
from onceward_consumer.policy import fixed
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

LEASE = timedelta(seconds=4)
KEYS = 24


def test_it_is_extended_and_nobody_takes_the_command_over(services: Services, database: str, topic_prefix: str) -> None:
    calls: Counter[str] = Counter()
    over = threading.Event()
    app = App(app_name(topic_prefix))

    @app.handler(
        Increment, lane=f"{topic_prefix}counter", mode="external", concurrency=KEYS, retry=fixed("1s", attempts=3)
    )
    async def send(command: Increment, ctx: Any) -> None:
        calls[f"{command.counter}/{ctx.attempt}"] += 1
        while not over.is_set():
            await asyncio.sleep(0.02)

    group = group_of(app, services, database, partitions=8)
    group.publish(Increment(counter=f"k{n}", amount=n) for n in range(KEYS))
    with Forwarder(database, services.bootstrap), group.running(lease=LEASE) as first:
        eventually(lambda: len(calls) == KEYS, "calls")
        before = group.query("select lease_until from onceward.workers where incarnation = %s", first.incarnation)[0][0]
        with group.running(lease=LEASE) as second:
            eventually(
                lambda: second._poller is not None and second._poller.tenures(), "share of the second worker", 60
            )
            eventually(
                lambda: group.count("select (clock_timestamp() > %s)::int", before + LEASE / 2),
                "one and a half leases gone by",
                60,
            )
            eventually(lambda: second._buffer.records, "records that the second has to wait with")
            alive = group.query(
                "select l.state, l.attempt, w.incarnation from onceward.ledger l"
                " join onceward.workers w on w.incarnation = l.incarnation and w.lease_until > clock_timestamp()"
            )
            assert Counter(alive) == {("running", 1, first.incarnation): KEYS}
            over.set()
            eventually(lambda: group.states() == {"done": KEYS} and group.settled(), "all done")
    assert calls == {f"k{n}/1": 1 for n in range(KEYS)}, "each was called once, and no attempt was counted for a death"
    assert not group.count("select count(*) from onceward.attempts")
