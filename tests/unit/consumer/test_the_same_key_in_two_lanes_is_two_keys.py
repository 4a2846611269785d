"""A key is one within its lane, over all topics of it: the lane's own and its retry topics."""

from __future__ import annotations

from onceward_consumer.buffer import Buffer
from onceward_consumer.deliveries import Delivery


def delivery(lane: str, topic: str) -> Delivery:
    return Delivery(
        topic=topic, partition=0, offset=0, timestamp_ms=0, key=b"a", payload=b"", headers=[], lane=lane,
        assignment=None, handlers={},
    )  # fmt: skip


def test_both_run_at_the_same_time() -> None:
    buffer = Buffer()
    buffer.add([delivery("one", "one"), delivery("two", "two")])
    assert {run.deliveries[0].lane for _ in range(2) for run in buffer.take_now("sync", lambda _: 1)} == {"one", "two"}


def test_a_topic_of_retries_is_of_its_lane() -> None:
    buffer = Buffer()
    buffer.add([delivery("one", "one"), delivery("one", "one.app.retry.1s")])
    assert len(buffer.take_now("sync", lambda _: 1)) == 1
    assert not buffer.take_now("sync", lambda _: 1)
