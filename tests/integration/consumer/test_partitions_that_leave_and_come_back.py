"""A partition that goes to another worker waits a moment for what runs of it; one runner per key always, whoever has it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.worker import Worker
from onceward_runtime import events
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

KEYS = 12


class Watched:
    """A handler that takes as long as it is told, and notes who runs what at the same time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.gate = threading.Event()
        self.gated = False
        self.running: Counter[str] = Counter()
        self.together: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, key: str) -> None:
        with self._lock:
            self.running[key] += 1
            if self.running[key] > 1:
                self.together.append(key)
        try:
            if self.gated:
                self.gate.wait(20)
            time.sleep(self.seconds)
        finally:
            with self._lock:
                self.running[key] -= 1


@pytest.fixture
def watched() -> Iterator[Watched]:
    found = Watched()
    yield found
    found.gate.set()


def build(services: Services, dsn: str, prefix: str, watched: Watched) -> Group:
    app = App(app_name(prefix))

    @app.handler(Increment, lane=f"{prefix}counter")
    def increment(command: Increment, ctx: Any) -> None:
        ctx.connection.execute(
            "insert into effect (counter, amount) values (%s, %s)", (command.counter, command.amount)
        )
        watched(command.counter)

    group = group_of(app, services, dsn)
    group.query("create table effect (seq bigint generated always as identity, counter text, amount int)")
    return group


def publish(group: Group, rounds: int, first: int = 0) -> None:
    group.publish(Increment(counter=f"k{k}", amount=n) for n in range(first, first + rounds) for k in range(KEYS))


def in_order(group: Group, rounds: int) -> bool:
    found = group.query("select counter, array_agg(amount order by seq) from effect group by 1")
    return dict(found) == {f"k{k}": list(range(rounds)) for k in range(KEYS)}


def duplicates(group: Group) -> float:
    lane = next(iter(group.app.handlers.values())).lane
    return sum(
        sample.value
        for metric in events.DUPLICATES.collect()
        for sample in metric.samples
        if sample.name.endswith("_total") and sample.labels["lane"] == lane
    )


def share(worker: Worker) -> int:
    return 0 if worker._poller is None else len(worker._poller.tenures())


def test_what_ends_within_the_wait_is_committed_and_not_looked_at_again(
    services: Services, database: str, topic_prefix: str, watched: Watched
) -> None:
    group = build(services, database, topic_prefix, watched)
    watched.seconds = 0.3
    rounds = 0
    with Forwarder(database, services.bootstrap), group.running(threads=KEYS, group_size=1) as first:
        eventually(first.ready, "ready worker")
        everything = share(first)
        with group.running(threads=KEYS, group_size=1) as second:
            until = time.monotonic() + 30
            while not (share(second) and share(first) < everything):  # it is in the middle of it when they are shared
                assert time.monotonic() < until, "the second has no share"
                if rounds * KEYS - group.states().get("done", 0) < 4 * KEYS:
                    publish(group, 1, first=rounds)
                    rounds += 1
                time.sleep(0.02)
            eventually(lambda: group.states() == {"done": rounds * KEYS} and group.settled(), "end")
    assert in_order(group, rounds)
    assert not watched.together
    assert not duplicates(group)


def test_what_runs_on_after_the_wait_keeps_its_key_from_the_next_owner(
    services: Services, database: str, topic_prefix: str, watched: Watched
) -> None:
    group = build(services, database, topic_prefix, watched)
    watched.gated = True
    options: dict[str, Any] = {"threads": KEYS, "group_size": 1, "revoke_wait": timedelta(seconds=0.2)}
    with Forwarder(database, services.bootstrap), group.running(**options) as first:
        eventually(first.ready, "ready worker")
        everything = share(first)
        publish(group, 3)
        eventually(lambda: sum(watched.running.values()) == KEYS, "call of each key")
        with group.running(**options) as second:
            eventually(lambda: share(second) and share(first) < everything, "share of the second")
            eventually(lambda: second._buffer.records > 0, "records that the second has fetched")
            time.sleep(1.5)  # longer than it waits for a lock
            assert sum(watched.running.values()) == KEYS, "the second has not begun any of these keys"
            watched.gate.set()
            eventually(lambda: group.states() == {"done": 3 * KEYS} and group.settled(), "end")
    assert in_order(group, 3)
    assert not watched.together


def test_partitions_that_are_taken_and_given_back_run_no_key_twice_at_once(
    services: Services, database: str, topic_prefix: str, watched: Watched
) -> None:
    group = build(services, database, topic_prefix, watched)
    watched.gated = True
    options: dict[str, Any] = {"threads": KEYS, "group_size": 1, "revoke_wait": timedelta(0)}
    with Forwarder(database, services.bootstrap), group.running(**options) as first:
        eventually(first.ready, "ready worker")
        everything = share(first)
        publish(group, 5)
        eventually(lambda: sum(watched.running.values()) == KEYS, "call of each key")
        with group.running(**options) as second:
            eventually(lambda: share(second) and share(first) < everything, "share of the second")
        eventually(lambda: share(first) == everything, "return of the partitions")
        assert first.alive()
        assert sum(watched.running.values()) == KEYS, "the calls of before still run, and no other of their keys"
        watched.gate.set()
        publish(group, 5, first=5)
        eventually(lambda: group.states() == {"done": 10 * KEYS} and group.settled(), "end")
        eventually(lambda: first._buffer.records == 0 and first._buffer.keys == 0, "empty buffer")
    assert in_order(group, 10)
    assert not watched.together
