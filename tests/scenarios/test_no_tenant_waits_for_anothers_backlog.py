"""The tenants of a lane take turns: a few commands of one are not kept waiting by thousands of another's, however many keys
those have.
"""

from __future__ import annotations

import threading
import time
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


def test_a_backlog_longer_than_the_buffer_keeps_no_other_tenant_waiting(
    services: Services, database: str, topic_prefix: str
) -> None:
    """With a limit for tenants: what is beyond it is parked, and the other's records behind it are fetched."""
    app = App(app_name(topic_prefix))
    app.limit("tenant:big", concurrency=1)
    gate = threading.Event()
    order: list[str] = []

    @app.handler(Increment, lane=f"{topic_prefix}counter", mode="external", concurrency=8)
    def increment(command: Increment, ctx: Any) -> None:
        if ctx.envelope.tenant == "big":
            gate.wait(60)
        order.append(ctx.envelope.tenant)

    group = group_of(app, services, database)
    group.publish((Increment(counter=f"big-{n}") for n in range(1_000)), tenant="big")
    group.publish((Increment(counter=f"small-{n}") for n in range(FEW)), tenant="small")
    with Forwarder(database, services.bootstrap), group.running(buffered_records=100):
        eventually(lambda: len(order) == FEW, "end of the small tenant's commands", 60)
        assert set(order) == {"small"}
        assert group.count("select count(*) from onceward.parked where reason = 'over_quota'") > 500
        gate.set()
        eventually(lambda: group.states().get("done") == 1_000 + FEW and group.settled(), "end", 120)
    assert order.count("big") == 1_000


def test_with_one_permit_a_tenants_commands_run_one_at_a_time(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))
    app.limit("tenant:*", concurrency=1)
    lock = threading.Lock()
    inside: dict[str, int] = {"a": 0, "b": 0}
    most: dict[str, int] = {"a": 0, "b": 0}
    together = [0]

    @app.handler(Increment, lane=f"{topic_prefix}counter", mode="external", concurrency=8)
    def increment(command: Increment, ctx: Any) -> None:
        tenant = ctx.envelope.tenant
        with lock:
            inside[tenant] += 1
            most[tenant] = max(most[tenant], inside[tenant])
            together[0] = max(together[0], sum(inside.values()))
        time.sleep(0.01)
        with lock:
            inside[tenant] -= 1

    group = group_of(app, services, database)
    for tenant in ("a", "b"):
        group.publish((Increment(counter=f"{tenant}-{n}") for n in range(60)), tenant=tenant)
    with Forwarder(database, services.bootstrap), group.running(), group.running():
        eventually(lambda: group.states() == {"done": 120}, "end", 60)
    assert most == {"a": 1, "b": 1}
    assert together[0] == 2, "tenants do not wait for each other"
