"""The tenants of a lane take turns: a few commands of one are not kept waiting by thousands of another's, however many keys
those have.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

from onceward_consumer.app import App
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

MANY = 4_000
FEW = 40


@pytest.mark.parametrize("mode", ["transactional", "external"])
def test_a_few_commands_of_one_tenant_end_among_the_first(
    mode: Any, services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))
    gate = threading.Event()
    order: list[str] = []

    @app.handler(Increment, lane=f"{topic_prefix}counter", mode=mode)
    def increment(command: Increment, ctx: Any) -> None:
        gate.wait(60)
        order.append(ctx.envelope.tenant)

    group = group_of(app, services, database)
    group.publish((Increment(counter=f"big-{n}") for n in range(MANY)), tenant="big")
    group.publish((Increment(counter=f"small-{n}") for n in range(FEW)), tenant="small")
    with Forwarder(database, services.bootstrap), group.running(threads=2, group_size=20) as worker:
        eventually(lambda: worker._buffer.records == MANY + FEW, "buffer with everything")
        gate.set()
        eventually(lambda: group.states() == {"done": MANY + FEW}, "end", 60)
    last = MANY + FEW - 1 - order[::-1].index("small")
    assert last < MANY // 4, "the last of the small tenant's commands ran before most of the big one's"
