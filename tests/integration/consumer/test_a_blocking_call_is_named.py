"""A call that blocks the event loop is named by handler and place, once; one that only waits is not."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import REGISTRY

from onceward_consumer.app import App
from onceward_consumer.handlers import Mode
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services


def blocked() -> float:
    return REGISTRY.get_sample_value("onceward_loop_blocked_total", {"type": "test.Increment"}) or 0.0


@pytest.mark.parametrize("mode", ["transactional", "external"])
def test_it_is_told_once_for_each_place(
    services: Services, database: str, topic_prefix: str, capsys: pytest.CaptureFixture[str], mode: Mode
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", mode=mode)
    async def increment(command: Increment, ctx: Any) -> None:
        if command.note == "block":
            time.sleep(0.6)  # noqa: ASYNC251
        else:
            await asyncio.sleep(0.6)

    group = group_of(app, services, database)
    before = blocked()
    with Forwarder(database, services.bootstrap), group.running(blocked_after=timedelta(seconds=0.2)):
        group.publish(Increment(counter=f"k{n}", note="wait") for n in range(4))
        eventually(lambda: group.states() == {"done": 4}, "those that wait")
        assert blocked() == before
        group.publish(Increment(counter=f"k{n}", note="block") for n in range(3))
        eventually(lambda: group.states() == {"done": 7}, "those that block")
        eventually(lambda: blocked() > before, "count")
    lines = [line for line in capsys.readouterr().out.splitlines() if "handler.blocks" in line]
    assert len(lines) == 1
    assert "test_a_blocking_call_is_named.py:" in lines[0]
    assert "in increment" in lines[0]
    assert "test.Increment" in lines[0]
