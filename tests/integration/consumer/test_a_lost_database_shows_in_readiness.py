"""A worker whose asynchronous or external handlers cannot reach the database is not ready."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onceward_consumer.app import App
from onceward_consumer.buffer import Buffer
from onceward_consumer.connections import AsyncHandlerConnection
from onceward_consumer.event_loop import LoopThread
from onceward_consumer.executors import kinds_of
from onceward_consumer.handlers import Mode
from onceward_consumer.moods import Mood
from onceward_consumer.release import Wakeups
from onceward_consumer.worker import Worker
from onceward_runtime.settings import Settings
from onceward_schemas.errors import DatabaseError
from tests.support.consumers import eventually
from tests.unit.consumer.test_groups_find_the_culprit import group


async def away() -> AsyncHandlerConnection:
    raise DatabaseError("It is away.")


@pytest.mark.parametrize("mode", ["transactional", "external"])
def test_the_loop_knows_of_it(mode: Mode) -> None:
    _, engine = group("a")
    [handler] = engine.handlers.values()
    handler = dataclasses.replace(handler, is_async=True, mode=mode)
    engine = dataclasses.replace(engine, handlers={handler.type: handler})
    wakeups = Wakeups(kinds_of(engine))
    buffer = Buffer(most_records=10, most_bytes=1000, runners=1)
    loop = LoopThread(
        engine, buffer, wakeups, Mood(), open_=away, tasks=1, kept=[None], group_size=1, leased=lambda: True
    )
    assert not loop.lost
    loop.start()
    try:
        assert not loop.lost
        wakeups.set()
        eventually(lambda: loop.lost, "word of the loss", 5)
    finally:
        loop.stop(0.1)


def test_the_worker_asks_the_loop() -> None:
    worker = cast(Any, Worker(App("g"), Settings()))
    worker._poller = SimpleNamespace(running=True, turned_at=float("inf"), assigned=True, failure=None)
    worker._heartbeat.leased_until = float("inf")
    worker._loop = SimpleNamespace(running=True, silent_seconds=0.0, failures=list, lost=False)
    assert worker.ready()
    worker._loop.lost = True
    assert not worker.ready()
