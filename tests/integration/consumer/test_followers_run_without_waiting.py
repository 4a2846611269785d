"""Parked followers of different executors on one lane: none waits for the handlers of another."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

import pytest

from onceward_consumer import heartbeat
from onceward_consumer.app import App
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed
from onceward_schemas.avsc import command_schema
from onceward_schemas.command import Command, CommandSchema
from tests.support.charges import charge
from tests.support.commands import Charge, Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

FOLLOWERS = 50
KEYS = 25
SWEEP_SECONDS = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ship(Command):
    """A command with a key, for an asynchronous handler."""

    parcel: str
    number: int

    SCHEMA: ClassVar[CommandSchema] = command_schema(
        '{"type": "record", "name": "Ship", "namespace": "test", "onceward": {"version": 1, "lane": "test.ship",'
        ' "key": "parcel", "aggregate": "parcel"}, "fields": [{"name": "parcel", "type": "string"},'
        ' {"name": "number", "type": "int"}]}'
    )


def test_an_external_key_drains_beside_slow_others(
    services: Services, database: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_SWEEP_SECONDS", SWEEP_SECONDS)  # so rare that whoever waits for it is seen
    app = App(app_name(topic_prefix))
    lane, retry = f"{topic_prefix}mixed", fixed("1s", attempts=3)
    calls: list[tuple[int, float]] = []

    def fail_first(number: int, ctx: Any) -> None:
        if number == 0 and ctx.attempt == 1:
            raise Retry("not_yet")

    @app.handler(Increment, lane=lane, retry=retry, mode="external", concurrency=4)
    async def send(command: Increment, ctx: Any) -> None:
        fail_first(command.amount, ctx)
        await asyncio.sleep(0.01)
        calls.append((command.amount, time.monotonic()))

    @app.handler(Charge, lane=lane, retry=retry)
    def book(command: Charge, ctx: Any) -> None:
        fail_first(command.count, ctx)
        time.sleep(0.1)

    @app.handler(Ship, lane=lane, retry=retry)
    async def ship(command: Ship, ctx: Any) -> None:
        fail_first(command.number, ctx)
        await asyncio.sleep(0.1)

    group = group_of(app, services, database, partitions=1)
    group.publish([Increment(counter="a", amount=n) for n in range(FOLLOWERS + 1)])
    with Forwarder(database, services.bootstrap), group.running(threads=2, tasks=2):
        for key in range(KEYS):  # one after the other, so that rounds of theirs begin again and again
            group.publish([charge(order_id=UUID(int=key), count=n) for n in range(6)])
            group.publish([Ship(parcel=f"p{key}", number=n) for n in range(6)])
            time.sleep(0.1)
        eventually(lambda: len(calls) == FOLLOWERS + 1, "calls", 60)
        assert group.count("select count(*) from onceward.holds"), "the others still drain meanwhile"
        eventually(group.settled, "end of the others", 60)
    assert [number for number, _ in calls] == list(range(FOLLOWERS + 1))
    gaps = [after - before for (_, before), (_, after) in itertools.pairwise(calls)]
    assert max(gaps) < SWEEP_SECONDS / 3, "the next follower is looked for at once, and nobody else has its key locked"
