"""How far a group is behind: records that it has not committed."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from onceward_runtime.settings import Settings

_SECONDS: Final = 10.0
_NOT_YET: Final = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


def lag_of(settings: Settings, group: str, topics: Iterable[str]) -> int:
    """Over all partitions of the topics that exist."""
    consumer = Consumer(settings.kafka(**{"group.id": group, "log_level": 0}))
    try:
        found = consumer.list_topics(timeout=10).topics
        parts = [TopicPartition(name, n) for name in topics if name in found for n in found[name].partitions]
        total = 0
        for part in _committed(consumer, parts):
            low, high = consumer.get_watermark_offsets(part, 10)
            total += max(0, high - max(low, part.offset))
        return total
    finally:
        consumer.close()


def _committed(consumer: Consumer, parts: list[TopicPartition]) -> list[TopicPartition]:
    """A coordinator that has only just come up says so at first."""
    until = time.monotonic() + _SECONDS
    while True:
        try:
            return consumer.committed(parts, _SECONDS)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_YET or time.monotonic() > until:
                raise
            time.sleep(0.1)
