"""A COMMIT whose answer is lost leaves nothing behind: not a command that its own worker waits for, nor a key leased to nobody."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onceward_consumer.app import App
from onceward_consumer.context import AsyncContext
from onceward_consumer.drivers import AsyncDriver
from onceward_consumer.failures import Retry
from onceward_consumer.leases import complete
from onceward_consumer.outcomes import Busy
from onceward_consumer.policy import fixed
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services
from tests.unit.consumer.test_groups_find_the_culprit import drive, group


@pytest.fixture
def lost(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every other COMMIT is made durable and then loses its connection; counts them."""
    commit = AsyncDriver._commit
    count = [0]

    async def losing(self: Any) -> None:
        await commit(self)
        count[0] += 1
        if count[0] % 2:
            await self._connection.close()
            raise psycopg.OperationalError("the answer got lost")

    monkeypatch.setattr(AsyncDriver, "_commit", losing)
    return count


def test_every_call_is_made_once_and_in_order(
    services: Services, database: str, topic_prefix: str, lost: list[int]
) -> None:
    app = App(app_name(topic_prefix))
    calls: list[tuple[str, int, int]] = []

    @app.handler(Increment, lane=f"{topic_prefix}mail", mode="external", retry=fixed("300ms", attempts=3))
    async def send(command: Increment, ctx: AsyncContext) -> None:
        calls.append((command.counter, command.amount, ctx.attempt))
        await asyncio.sleep(0.01)
        if command.note == "fail" and ctx.attempt == 1:
            raise Retry("busy")

    found = group_of(app, services, database)
    found.publish(
        Increment(counter=key, amount=n, note="fail" if (key, n) == ("a", 0) else None)
        for n in range(4)
        for key in "ab"
    )
    with Forwarder(database, services.bootstrap), found.running():
        eventually(lambda: found.states() == {"done": 8} and found.settled(), "8 calls")
    assert lost[0] > 4
    assert [call[1:] for call in calls if call[0] == "a"] == [(0, 1), (0, 2), (1, 1), (2, 1), (3, 1)]
    assert [call[1:] for call in calls if call[0] == "b"] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_what_was_handed_back_comes_again_although_the_answer_was_lost() -> None:
    items, engine = group("a")
    items[0].outcome = back = Busy(timedelta(0))
    drive(complete(items, engine), items, lambda i, p: None)  # the ledger does not have it as this worker's any more
    assert items[0].outcome is back
