"""`concurrency` of a transactional or batch handler: so many threads or tasks of a worker run it at the same time, no more.

Others are not kept waiting by it, and its followers that come out of PostgreSQL are within the bound as well.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services


class Gauge:
    """How many run at the same time, and how many did at most."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize("mode", ["sync", "async", "batch"])
def test_no_more_than_that_run_at_once(services: Services, database: str, topic_prefix: str, mode: str) -> None:
    app = App(app_name(topic_prefix))
    heavy, light = Gauge(), Gauge()
    rules: dict[str, Any] = {"lane": f"{topic_prefix}counter", "concurrency": 2, "retry": fixed("100ms", attempts=3)}

    def fail(command: Increment, attempt: int) -> None:
        if command.amount == 0 and attempt == 1:
            raise Retry("not_yet")  # its followers are parked

    if mode == "sync":

        @app.handler(Increment, **rules)
        def increment(command: Increment, ctx: Any) -> None:
            with heavy:
                time.sleep(0.03)
                fail(command, ctx.attempt)

    elif mode == "async":

        @app.handler(Increment, **rules)
        async def increment_async(command: Increment, ctx: Any) -> None:
            with heavy:
                await asyncio.sleep(0.03)
                fail(command, ctx.attempt)

    else:

        @app.handler(Increment, mode="batch", batch_size=3, **rules)
        def increment_many(commands: list[Increment], ctx: Any) -> None:
            with heavy:
                time.sleep(0.05)

    @app.handler(Settle, lane=f"{topic_prefix}settle")
    def settle(command: Settle, ctx: Any) -> None:
        with light:
            time.sleep(0.03)

    group = group_of(app, services, database)
    group.publish(Increment(counter=f"k{n % 12}", amount=n // 12) for n in range(96))
    group.publish(Settle(batch=n) for n in range(60))
    with Forwarder(database, services.bootstrap), group.running(threads=6, tasks=6, group_size=4):
        eventually(lambda: group.states() == {"done": 156} and group.settled(), "end")
    assert heavy.most == 2
    assert light.most > 2
