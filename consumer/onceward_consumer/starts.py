"""Where to begin to read a partition: at the committed offset, if the log that is there now is the one it belongs to.

Reading too much is harmless, since the ledger knows what has been done; reading too little loses commands.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from onceward_consumer.tenures import WARY_RECORDS, Marks, Tenure, TopicIds, written_id
from onceward_runtime import events, log

_log = logging.getLogger("onceward.consumer")
_SECONDS: Final = 5.0


class Start(NamedTuple):
    """A partition with the offset to fetch from. The tenure is another than before where the log is."""

    tenure: Tenure
    offset: int

    def partition(self) -> TopicPartition:
        """As the client takes it."""
        return TopicPartition(self.tenure.topic, self.tenure.partition, self.offset)


class Starts:
    """Looks at commits, topic ids and logs."""

    def __init__(self, group: str, ids: TopicIds, marks: Marks) -> None:
        self._group = group
        self._marks = marks
        self._ids = ids

    def of(self, consumer: Consumer, tenures: Sequence[Tenure]) -> list[Start]:
        """Where these begin. Those of which it cannot be told yet are left out; ask again later."""
        ids = self._ids.read({tenure.topic for tenure in tenures}, _SECONDS)
        here = [tenure for tenure in tenures if tenure.topic in ids]
        committed = self._committed(consumer, [tenure for tenure in here if tenure.topic_id is None])
        starts: list[Start] = []
        for tenure in here:
            topic_id = ids[tenure.topic]
            if tenure.topic_id is None:
                found = committed.get(tenure.address)
                start = None if found is None else self._first(tenure, found, topic_id)
            elif topic_id and tenure.topic_id != topic_id:
                start = self._anew(tenure, topic_id, tenure.astray, "recreated")
            else:
                start = self._astray(consumer, tenure)
            if start is not None:
                start.tenure.placed, start.tenure.astray = True, None
                self._begin(consumer, start)
                starts.append(start)
        return starts

    def _begin(self, consumer: Consumer, start: Start) -> None:
        """Note the offset that the mark is committed with."""
        offset = start.offset
        if offset == OFFSET_BEGINNING:
            with suppress(KafkaException):
                bounds = consumer.get_watermark_offsets(start.partition(), _SECONDS)
                offset = offset if bounds is None else bounds[0]
        if offset >= 0:
            start.tenure.offsets.begin(offset)

    def _committed(self, consumer: Consumer, tenures: Iterable[Tenure]) -> dict[tuple[str, int], TopicPartition]:
        asked = [TopicPartition(tenure.topic, tenure.partition) for tenure in tenures]
        if not asked:
            return {}
        try:
            answers = consumer.committed(asked, _SECONDS)
        except KafkaException as error:
            _log.warning("The committed offsets cannot be read yet: %s", error)
            return {}
        return {(answer.topic, answer.partition): answer for answer in answers if answer.error is None}

    def _first(self, tenure: Tenure, committed: TopicPartition, topic_id: str) -> Start:
        tenure.topic_id = topic_id
        if committed.offset < 0:
            return Start(tenure, OFFSET_BEGINNING)
        former = written_id(committed.metadata)
        if former is not None and topic_id and former != topic_id:
            self._tell(tenure, committed.offset, "recreated")
            return Start(tenure, OFFSET_BEGINNING)
        if self._marks.is_foreign(committed.metadata):
            tenure.wary = WARY_RECORDS
        return Start(tenure, committed.offset)

    def _astray(self, consumer: Consumer, tenure: Tenure) -> Start | None:
        """The broker has not got the offset that was asked for: its log begins later, or ends before it."""
        offset = tenure.astray
        if offset is None or offset < 0:
            return Start(tenure, OFFSET_BEGINNING)
        try:
            bounds = consumer.get_watermark_offsets(TopicPartition(tenure.topic, tenure.partition), _SECONDS)
        except KafkaException as error:
            _log.warning("The bounds of %s[%s] cannot be read yet: %s", tenure.topic, tenure.partition, error)
            return None
        if bounds is None:
            return None
        low, high = bounds
        if offset < low:
            log.emit(
                events.RECORDS_EXPIRED,
                group=self._group,
                topic=tenure.topic,
                partition=tenure.partition,
                offset=offset,
                records=low - offset,
            )
            return Start(tenure, low)
        if offset > high:
            return self._anew(tenure, tenure.topic_id, offset, "beyond_end")
        return Start(tenure, offset)

    def _anew(self, tenure: Tenure, topic_id: str | None, offset: int | None, reason: str) -> Start:
        self._tell(tenure, offset, reason)
        return Start(tenure.anew(topic_id), OFFSET_BEGINNING)

    def _tell(self, tenure: Tenure, offset: int | None, reason: str) -> None:
        log.emit(
            events.PARTITION_RESTARTED,
            group=self._group,
            topic=tenure.topic,
            partition=tenure.partition,
            offset=offset,
            reason=reason,
        )
