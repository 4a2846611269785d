"""What became of commits: each is counted, each cause is told once, and those that a rebalance explains are not told."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Final

from confluent_kafka import KafkaError, TopicPartition

from onceward_consumer.tenures import Tenure
from onceward_runtime import events, log

_log = logging.getLogger("onceward.consumer")

TOPIC_GONE: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
_ORDINARY: Final = frozenset(
    {
        KafkaError.ILLEGAL_GENERATION,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_MEMBER_ID,
        KafkaError._ASSIGNMENT_LOST,
        KafkaError._NO_OFFSET,
    }
)
"""A rebalance is under way or took the partition: whoever has it next reads again what was not committed."""


class Commits:
    """The troubles that have been told and are not over."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._told: dict[tuple[str, int], int] = {}

    def done(self, partitions: Iterable[TopicPartition]) -> None:
        """These are committed."""
        events.OFFSET_COMMITS.labels(self._group, "ok").inc()
        for partition in partitions:
            self._told.pop((partition.topic, partition.partition), None)

    def failed(self, error: KafkaError, partitions: Collection[tuple[str, int]]) -> None:
        """These are not."""
        events.OFFSET_COMMITS.labels(self._group, "failed").inc()
        code = error.code()
        if code in _ORDINARY:
            _log.debug("%s offsets were not committed: %s", len(partitions), error)
            return
        if any(self._told.get(address) != code for address in partitions):
            self._told.update(dict.fromkeys(partitions, code))
            log.emit(events.OFFSETS_FAILED, group=self._group, partitions=len(partitions), error=error.str())

    def forget(self, tenures: Iterable[Tenure]) -> None:
        """These are no longer ours."""
        for tenure in tenures:
            self._told.pop(tenure.address, None)
