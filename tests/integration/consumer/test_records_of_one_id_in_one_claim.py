"""Records with one id that come together, and have no key that would keep them apart: one is run, the others are duplicates."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.handlers import Mode
from onceward_schemas.ids import new_id
from tests.support.commands import Settle
from tests.support.consumers import app_name, eventually, group_of
from tests.support.raw_records import RawProducer, heads
from tests.support.services import Services

IDS = 20


@pytest.mark.parametrize("mode", ["transactional", "external"])
def test_one_of_them_is_run(services: Services, database: str, topic_prefix: str, mode: Mode) -> None:
    app = App(app_name(topic_prefix))
    lane = f"{topic_prefix}settle"
    calls: Counter[uuid.UUID] = Counter()

    @app.handler(Settle, lane=lane, mode=mode)
    async def settle(command: Settle, ctx: Any) -> None:
        calls[ctx.command_id] += 1

    group = group_of(app, services, database, partitions=1)
    producer = RawProducer(services.bootstrap)
    for number in range(IDS):
        identity = str(new_id())
        for _ in range(3):
            producer.send(lane, None, group.codec.encode(Settle(batch=number)), heads("test.Settle", id=identity))
    with group.running():
        eventually(lambda: group.states() == {"done": IDS}, "end of all")
    assert calls.total() == IDS
    assert len(calls) == IDS
