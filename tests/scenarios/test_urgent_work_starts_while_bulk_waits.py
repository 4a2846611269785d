"""An urgent lane has its share of runners and of room: neither bulk commands that hang, nor 20,000 slow ones, nor a buffer full
of them keep its commands from starting.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from onceward_consumer.app import App
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

BULK = 20_000
SLOW_SECONDS = 0.003
URGENT = 25


def test_a_reserved_runner_is_free_while_bulk_commands_hang(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))
    app.lane(f"{topic_prefix}urgent", reserved=1)
    gate = threading.Event()
    hanging: list[str] = []
    urgent: list[int] = []

    @app.handler(Increment, lane=f"{topic_prefix}bulk")
    def bulk(command: Increment, ctx: Any) -> None:
        hanging.append(command.counter)
        gate.wait(60)

    @app.handler(Settle, lane=f"{topic_prefix}urgent")
    def settle(command: Settle, ctx: Any) -> None:
        urgent.append(command.batch)

    group = group_of(app, services, database)
    with Forwarder(database, services.bootstrap), group.running(threads=3, group_size=1) as worker:
        eventually(worker.ready, "ready worker")
        group.publish(Increment(counter=f"c{n}") for n in range(100))
        eventually(lambda: len(hanging) == 2, "two hanging runners")
        group.publish(Settle(batch=n) for n in range(URGENT))
        eventually(lambda: len(urgent) == URGENT, "end of the urgent commands")
        assert len(hanging) == 2, "the others' runners still hang"
        gate.set()
        eventually(lambda: group.states() == {"done": 100 + URGENT}, "end of the bulk commands")


def test_an_urgent_command_passes_twenty_thousand_slow_ones(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))
    app.lane(f"{topic_prefix}urgent", weight=4, reserved=1)
    done = [0]
    passed_by: list[int] = []

    @app.handler(Increment, lane=f"{topic_prefix}bulk")
    def bulk(command: Increment, ctx: Any) -> None:
        time.sleep(SLOW_SECONDS)
        done[0] += 1

    @app.handler(Settle, lane=f"{topic_prefix}urgent")
    def settle(command: Settle, ctx: Any) -> None:
        passed_by.append(done[0] - command.batch)

    group = group_of(app, services, database)
    group.publish(Increment(counter=f"c{n % 1000}") for n in range(BULK))
    with Forwarder(database, services.bootstrap), group.running(threads=4) as worker:
        eventually(lambda: worker._buffer.records > 5_000 and done[0] > 500, "buffer full of bulk commands")
        for number in range(1, URGENT + 1):
            group.publish([Settle(batch=done[0])])
            eventually(lambda number=number: len(passed_by) == number, "urgent command")  # type: ignore[misc]
        assert done[0] < BULK
    assert sorted(passed_by)[URGENT // 2] < 400, (
        "in the time from publish over Kafka to its start so many bulk commands ran"
    )
    assert max(passed_by) < 2_000


def test_a_lane_that_fills_its_share_of_the_buffer_leaves_room_for_the_others(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))
    gate = threading.Event()
    ran: list[int] = []

    @app.handler(Increment, lane=f"{topic_prefix}bulk", mode="external", concurrency=2)
    def bulk(command: Increment, ctx: Any) -> None:
        gate.wait(60)

    @app.handler(Settle, lane=f"{topic_prefix}other")
    def settle(command: Settle, ctx: Any) -> None:
        ran.append(command.batch)

    group = group_of(app, services, database)
    group.publish(Increment(counter=f"c{n}") for n in range(3_000))
    with Forwarder(database, services.bootstrap), group.running(buffered_records=1_000) as worker:
        eventually(lambda: worker._poller is not None and worker._poller._full, "lane with a full share")
        group.publish(Settle(batch=n) for n in range(2_000))
        eventually(lambda: len(ran) == 2_000, "end of the other lane's commands")
        gate.set()
        eventually(lambda: group.states() == {"done": 5_000} and group.settled(), "end of everything", 60)
