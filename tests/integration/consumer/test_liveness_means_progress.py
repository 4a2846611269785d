"""A worker whose event loop stands still, or whose heartbeat has died, is not alive; one that waits for a slow call is."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from onceward_consumer import worker as worker_module
from onceward_consumer.app import App
from onceward_consumer.gauges import Gauges
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of, idle_group
from tests.support.services import Services


def test_an_event_loop_that_stands_still_is_no_progress(
    services: Services, database: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_STALL_SECONDS", 1.0)
    app = App(app_name(topic_prefix))
    gate = threading.Event()

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    async def increment(command: Increment, ctx: Any) -> None:
        gate.wait(20)

    group = group_of(app, services, database)
    with Forwarder(database, services.bootstrap), group.running() as worker:
        try:
            eventually(worker.ready, "ready worker")
            group.publish([Increment(counter="a")])
            eventually(lambda: not worker.alive(), "end of being alive")
            assert not worker.ready()
            assert not worker.ended, "it may go on, so nobody but its guardian ends it"
        finally:
            gate.set()
        eventually(worker.alive, "progress")
        eventually(lambda: group.states() == {"done": 1}, "end")


def test_a_slow_call_in_a_thread_is_progress(
    services: Services, database: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_STALL_SECONDS", 1.0)
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Any) -> None:
        time.sleep(3)

    group = group_of(app, services, database)
    with Forwarder(database, services.bootstrap), group.running(threads=1) as worker:
        group.publish([Increment(counter="a")])
        while group.states() != {"done": 1}:
            assert worker.alive()
            time.sleep(0.2)


def test_a_worker_without_a_heartbeat_ends(
    services: Services, database: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = idle_group(services, database, topic_prefix)
    with Forwarder(database, services.bootstrap), group.running() as worker:
        eventually(worker.ready, "ready worker")

        def fail(self: Gauges) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(Gauges, "memory", fail)
        eventually(lambda: worker.ended, "end of the worker")
        assert isinstance(worker.error, ZeroDivisionError)
