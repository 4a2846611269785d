"""A call in a thread cannot be ended: while it runs on after the drain, its worker's lease keeps others from its command."""

from __future__ import annotations

import threading
from datetime import timedelta

from onceward_consumer.app import App
from onceward_consumer.context import Context
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services


def test_nobody_takes_it_over_before_the_lease_is_over(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))
    may_end = threading.Event()
    calls: list[int] = []
    leased: list[int] = []
    lease = "select count(*) from onceward.workers where incarnation = %s and lease_until > now()"

    @app.handler(Increment, lane=f"{topic_prefix}mail", mode="external")
    def send(command: Increment, ctx: Context) -> None:
        calls.append(ctx.attempt)
        if len(calls) == 1:
            may_end.wait(30)
        else:
            leased.append(group.count(lease, first.incarnation))

    group = group_of(app, services, database, drain_timeout=timedelta(seconds=2.5))
    group.publish([Increment(counter="a")])
    with Forwarder(database, services.bootstrap):
        try:
            with group.running(lease=timedelta(seconds=6)) as first:
                eventually(lambda: calls, "call")
            assert group.count(lease, first.incarnation) == 1
            with group.running():
                eventually(lambda: group.states() == {"done": 1} and group.settled(), "second call")
        finally:
            may_end.set()
    assert calls == [1, 2]
    assert leased == [0]


def test_a_drain_without_such_calls_gives_the_lease_back(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}mail", mode="external")
    def send(command: Increment, ctx: Context) -> None:
        pass

    group = group_of(app, services, database)
    group.publish([Increment(counter="a")])
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 1}, "call")
    assert not group.count("select count(*) from onceward.workers")
