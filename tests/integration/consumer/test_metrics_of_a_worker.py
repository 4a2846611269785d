"""What /metrics says of a worker while commands succeed, fail, wait, hang and come twice."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families

from onceward_consumer.app import App
from onceward_consumer.failures import Reject, Retry
from onceward_consumer.policy import fixed
from onceward_producer.rows import INSERT_MANY, arrays, row
from onceward_runtime.health import HealthServer
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

TYPE = "test.Increment"


class Page:
    """The metrics page of a process."""

    def __init__(self, port: int | None) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    def value(self, name: str, **labels: str) -> float:
        """The value of a sample, 0 where there is none."""
        with urllib.request.urlopen(self._url, timeout=5) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return float(sample.value)
        return 0.0


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    found = threading.Event()
    yield found
    found.set()


def build(services: Services, dsn: str, prefix: str, gate: threading.Event) -> Group:
    app = App(app_name(prefix))

    @app.handler(Increment, lane=f"{prefix}counter", retry=fixed("12s", attempts=3))
    def increment(command: Increment, ctx: Any) -> None:
        match command.note:
            case "fail" if ctx.attempt == 1:
                raise Retry("not_yet")
            case "dead":
                raise Reject("never")
            case "hang":
                gate.wait(40)

    return group_of(app, services, dsn, partitions=1, http_port=0)


def publish_twice(group: Group, command: Increment) -> None:
    """The same record again, as after a relay's restart."""
    made = row(command, group.codec)
    made = made._replace(topic=group.app.handlers[TYPE].lane)
    with psycopg.connect(group.dsn) as connection:
        connection.execute(INSERT_MANY, arrays([made]))
        connection.execute(INSERT_MANY, arrays([made]))


def test_the_page_says_what_happens(
    services: Services, database: str, topic_prefix: str, gate: threading.Event
) -> None:
    group = build(services, database, topic_prefix, gate)
    lane, name = group.app.handlers[TYPE].lane, group.app.name
    with Forwarder(database, services.bootstrap), group.running(threads=3, group_size=1) as worker:
        health = HealthServer(group.settings, [worker])
        health.start()
        try:
            page = Page(health.port)
            eventually(worker.ready, "ready worker")
            group.publish([Increment(counter="hang", note="hang")])
            eventually(lambda: page.value("onceward_in_flight", lane=lane) == 1, "call that hangs")
            group.publish([Increment(counter="a", note="fail"), Increment(counter="a"), Increment(counter="a")])
            group.publish([Increment(counter="b", note="dead"), *(Increment(counter=f"c{n}") for n in range(6))])
            publish_twice(group, Increment(counter="twice"))

            def says(expected: float, metric: str, **labels: str) -> None:
                eventually(lambda: page.value(metric, **labels) == expected, f"{metric} {labels} {expected}", 20)

            says(1, "onceward_duplicates_total", lane=lane, reason="done")
            says(1, "onceward_retries_total", lane=lane, type=TYPE, reason="not_yet")
            says(1, "onceward_dead_letters_total", lane=lane, type=TYPE, reason="never")
            for outcome, count in {"done": 7, "retry": 1, "dead": 1, "parked": 2, "duplicate": 1}.items():
                says(count, "onceward_commands_total", lane=lane, type=TYPE, outcome=outcome)
            says(9, "onceward_handler_seconds_count", lane=lane, type=TYPE)
            says(1, "onceward_held_keys", group=name, lane=lane, state="retrying")
            says(2, "onceward_parked", group=name, lane=lane, reason="held")
            says(1, "onceward_dead_letters_open", group=name, lane=lane)
            says(12, "onceward_offsets_ahead", lane=lane)
            says(3, "onceward_runners", group=name, kind="thread")
            says(1, "onceward_runners_busy", group=name, kind="thread")
            says(0, "onceward_head_age_seconds", lane=lane)
            eventually(lambda: page.value("onceward_unfinished_age_seconds", lane=lane) > 2, "age of what hangs")
            gate.set()
            eventually(lambda: group.states() == {"done": 11, "dead": 1}, "end", 30)
            for metric in ("unfinished_age_seconds", "offsets_ahead", "in_flight"):
                says(0, f"onceward_{metric}", lane=lane)
            says(0, "onceward_parked", group=name, lane=lane, reason="held")
            says(0, "onceward_held_keys", group=name, lane=lane, state="retrying")
        finally:
            health.stop()


def test_a_lane_has_an_age_while_its_head_waits(
    services: Services, database: str, topic_prefix: str, gate: threading.Event
) -> None:
    group = build(services, database, topic_prefix, gate)
    lane = group.app.handlers[TYPE].lane
    with Forwarder(database, services.bootstrap), group.running(threads=1, group_size=1) as worker:
        health = HealthServer(group.settings, [worker])
        health.start()
        try:
            page = Page(health.port)
            group.publish([Increment(counter="hang", note="hang"), *(Increment(counter=f"c{n}") for n in range(5))])
            eventually(lambda: page.value("onceward_head_age_seconds", lane=lane) > 1, "age of those that wait")
            assert page.value("onceward_buffered", lane=lane) == 5
            gate.set()
            eventually(lambda: page.value("onceward_head_age_seconds", lane=lane) == 0, "end of the waiting")
            assert worker.alive()
        finally:
            health.stop()
