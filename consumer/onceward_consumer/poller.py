"""The one thread that talks to Kafka: fetches, follows rebalances, pauses what is not due, commits what is settled.

It never waits for a handler, so it never misses a poll; it commits an offset only when everything before it is settled.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from onceward_consumer.buffer import Buffer
from onceward_consumer.clocks import DatabaseClock
from onceward_consumer.deliveries import Delivery, Headers
from onceward_consumer.handlers import Handler
from onceward_consumer.offsets import Offsets
from onceward_consumer.policy import TOLERANCE
from onceward_runtime import events, log
from onceward_runtime.kafka import broker_error
from onceward_schemas import headers

_log = logging.getLogger("onceward.consumer")
_BATCH = 500
_COMMIT_SECONDS = 0.1
_FULL_SECONDS = 0.2
_IDLE_SECONDS = 0.1
_EARLY_SECONDS = 1.0


class Tenure:
    """One tenure of a partition. A tier's records wait here until the first of them is due."""

    __slots__ = ("active", "delay", "offsets", "partition", "paused", "topic", "waiting")

    def __init__(self, topic: str, partition: int, delay: timedelta | None) -> None:
        self.topic = topic
        self.partition = partition
        self.delay = delay
        self.active = True
        self.paused = False
        self.offsets = Offsets()
        self.waiting: deque[Delivery] = deque()

    def finish(self, offset: int) -> None:
        """PostgreSQL holds what became of the record."""
        self.offsets.finish(offset)


class Poller:
    """Owns the Kafka consumer of one worker."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        group: str,
        topics: Mapping[str, tuple[str, timedelta | None]],
        handlers: Mapping[str, Handler],
        buffer: Buffer,
        clock: DatabaseClock,
        revoked: Callable[[], None] = lambda: None,
    ) -> None:
        """`topics` gives for each topic its lane, and its delay where it is a tier. `revoked` is called after a loss."""
        self._config = dict(config)
        self._group = group
        self._topics = dict(topics)
        self._handlers = handlers
        self._buffer = buffer
        self._clock = clock
        self._revoked = revoked
        self._tenures: dict[tuple[str, int], Tenure] = {}
        self._stopping = threading.Event()
        self._full = False
        self._last_commit = 0.0
        self._consumer: Consumer | None = None
        self._thread = threading.Thread(target=self._run, name="onceward-poller", daemon=True)
        self.turned_at = time.monotonic()
        """When the loop last came round."""
        self.assigned = False
        """Whether the group has given this worker its share, which may be empty."""
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Join the group.

        Raises: BrokerError when the configuration is not usable.
        """
        try:
            self._consumer = Consumer(self._config | {"on_commit": self._on_commit})
            self._consumer.subscribe(
                list(self._topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
            )
        except KafkaException as error:
            raise broker_error(error, "The consumer cannot start") from error
        self._thread.start()

    def stop(self, *, settle: Callable[[], None] = lambda: None, timeout: float = 30.0) -> None:
        """Stop fetching; once `settle` has returned, commit what is settled and leave the group."""
        self._settle = settle
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    _settle: Callable[[], None] = staticmethod(lambda: None)

    @property
    def running(self) -> bool:
        """Whether the thread lives."""
        return self._thread.is_alive()

    def tenures(self) -> list[Tenure]:
        """The partitions that are ours now."""
        return list(self._tenures.values())

    def _run(self) -> None:
        consumer = self._consumer
        assert consumer is not None
        try:
            while not self._stopping.is_set():
                self._turn(consumer)
                self.turned_at = time.monotonic()
            self._settle()
        except BaseException as error:
            self.failure = error
            _log.exception("The poller ended: %s", error)
        finally:
            self._leave(consumer)

    def _leave(self, consumer: Consumer) -> None:
        try:
            self._commit(consumer, asynchronous=False)
        except KafkaException as error:
            log.emit(events.OFFSETS_FAILED, group=self._group, partitions=len(self._tenures), error=error)
        try:
            consumer.close()
        except (KafkaException, RuntimeError) as error:
            _log.warning("The consumer did not close well: %s", error)

    def _turn(self, consumer: Consumer) -> None:
        if self._buffer.full and not self._full and not self._buffer.wait_for_room(_FULL_SECONDS):
            self._pause_all(consumer)
        elif self._full and not self._buffer.full:
            self._resume_all(consumer)
        first = consumer.poll(self._patience())
        if first is not None:
            self._receive((first,), consumer)  # before the next call, which may end the tenure it belongs to
            if more := consumer.consume(_BATCH, 0):
                self._receive(more, consumer)
        self._release_due(consumer)
        now = time.monotonic()
        if now - self._last_commit >= _COMMIT_SECONDS:
            self._last_commit = now
            self._commit(consumer, asynchronous=True)

    def _patience(self) -> float:
        """How long a poll may wait for a record: until the next tier record is due, or room may have come free."""
        patience = 0.02 if self._full else _IDLE_SECONDS
        for tenure in self._tenures.values():
            if tenure.waiting:
                patience = min(patience, self._seconds_until_due(tenure.waiting[0]))
        return max(0.0, patience)

    def _receive(self, messages: Iterable[Message], consumer: Consumer) -> None:
        ready: list[Delivery] = []
        tenures, topics, handlers = self._tenures, self._topics, self._handlers
        for message in messages:
            if (error := message.error()) is not None:
                self._report(error)
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            tenure = tenures.get((topic, partition))  # type: ignore[arg-type]
            if tenure is None:
                continue
            tenure.offsets.add(offset)  # type: ignore[arg-type]
            delivery = Delivery(
                topic=topic,  # type: ignore[arg-type]
                partition=partition,  # type: ignore[arg-type]
                offset=offset,  # type: ignore[arg-type]
                timestamp_ms=message.timestamp()[1],
                key=message.key(),
                payload=message.value(),
                headers=_headers_of(message),
                lane=topics[topic][0],  # type: ignore[index]
                assignment=tenure,
                handlers=handlers,
            )
            envelope = delivery.envelope
            if envelope is not None and envelope.context.group is not None and envelope.context.group != self._group:
                tenure.offsets.finish(delivery.offset)
            elif tenure.delay is not None and self._must_wait(tenure, delivery):
                tenure.waiting.append(delivery)
                if not tenure.paused:
                    tenure.paused = True
                    consumer.pause([TopicPartition(tenure.topic, tenure.partition)])
            else:
                ready.append(delivery)
        if ready:
            self._buffer.add(ready)

    def _must_wait(self, tenure: Tenure, delivery: Delivery) -> bool:
        """Whether a tier's record is not due. One that is due much later than its tier's delay must not hold others up."""
        left = self._seconds_until_due(delivery)
        assert tenure.delay is not None
        delivery.early = left > tenure.delay.total_seconds() * (1 + TOLERANCE) + _EARLY_SECONDS
        return not delivery.early and (left > 0 or bool(tenure.waiting))

    def _seconds_until_due(self, delivery: Delivery) -> float:
        due_at = delivery.envelope.context.due_at if delivery.envelope is not None else None
        return 0.0 if due_at is None else self._clock.seconds_until(due_at)

    def _release_due(self, consumer: Consumer) -> None:
        for tenure in self._tenures.values():
            if not tenure.waiting or self._buffer.full:
                continue
            due: list[Delivery] = []
            while tenure.waiting and self._seconds_until_due(tenure.waiting[0]) <= 0:
                due.append(tenure.waiting.popleft())
            if due:
                self._buffer.add(due)
            if not tenure.waiting and tenure.paused:
                tenure.paused = False
                if not self._full:
                    consumer.resume([TopicPartition(tenure.topic, tenure.partition)])

    def _pause_all(self, consumer: Consumer) -> None:
        self._full = True
        if self._tenures:
            consumer.pause([TopicPartition(topic, partition) for topic, partition in self._tenures])

    def _resume_all(self, consumer: Consumer) -> None:
        self._full = False
        if free := [TopicPartition(t.topic, t.partition) for t in self._tenures.values() if not t.paused]:
            consumer.resume(free)

    def _commit(self, consumer: Consumer, *, asynchronous: bool, tenures: Iterable[Tenure] | None = None) -> None:
        chosen = list(self._tenures.values() if tenures is None else tenures)
        offsets = [
            TopicPartition(tenure.topic, tenure.partition, position)
            for tenure in chosen
            if (position := tenure.offsets.committable()) is not None
        ]
        if not offsets:
            return
        try:
            if asynchronous:
                consumer.commit(offsets=offsets, asynchronous=True)
            else:
                consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            for tenure in chosen:
                tenure.offsets.forget_report()
            if not asynchronous:
                raise
            log.emit(events.OFFSETS_FAILED, group=self._group, partitions=len(offsets), error=error)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Called from a poll with the fate of an asynchronous commit; what failed is committed again."""
        failed = [p for p in partitions if p.error is not None] if error is None else partitions
        events.OFFSET_COMMITS.labels(self._group, "failed" if failed else "ok").inc()
        for partition in failed:
            if (tenure := self._tenures.get((partition.topic, partition.partition))) is not None:
                tenure.offsets.forget_report()
        if error is not None and error.code() != KafkaError._NO_OFFSET:
            log.emit(events.OFFSETS_FAILED, group=self._group, partitions=len(partitions), error=error.str())

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            _, delay = self._topics[partition.topic]
            self._tenures[partition.topic, partition.partition] = Tenure(partition.topic, partition.partition, delay)
        consumer.incremental_assign(partitions)
        self.assigned = True
        paused = [t for t in self._tenures.values() if self._full or t.paused]
        if paused:
            consumer.pause([TopicPartition(t.topic, t.partition) for t in paused])
        self._tell(events.PARTITIONS_ASSIGNED, "assigned", partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = self._end_tenures(partitions)
        try:
            self._commit(consumer, asynchronous=False, tenures=gone)
        except KafkaException as error:
            log.emit(events.OFFSETS_FAILED, group=self._group, partitions=len(gone), error=error)
        consumer.incremental_unassign(partitions)
        self._tell(events.PARTITIONS_REVOKED, "revoked", partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._end_tenures(partitions)
        self.assigned = bool(self._tenures)
        consumer.incremental_unassign(partitions)
        self._tell(events.PARTITIONS_LOST, "lost", partitions)

    def _end_tenures(self, partitions: Iterable[TopicPartition]) -> list[Tenure]:
        gone = [t for p in partitions if (t := self._tenures.pop((p.topic, p.partition), None)) is not None]
        for tenure in gone:
            tenure.active = False
            tenure.waiting.clear()
        self._buffer.drop_revoked()
        self._revoked()
        return gone

    def _tell(self, event: events.Event, kind: str, partitions: list[TopicPartition]) -> None:
        events.REBALANCES.labels(self._group, kind).inc()
        events.ASSIGNED_PARTITIONS.labels(self._group).set(len(self._tenures))
        log.emit(event, group=self._group, partitions=len(partitions))

    def _report(self, error: KafkaError) -> None:
        if error.fatal():
            raise broker_error(error, "The consumer cannot go on")
        _log.warning("Kafka says: %s", error)


_UNREADABLE: Headers = [(headers.ID, b"\xff"), (headers.TYPE, b"\xff")]
"""Stands for headers that the client cannot give: the record is a dead letter, and its place in the topic is kept."""


# Not a plain call: for a name that is not UTF-8 the client returns a broken list with an exception pending, which the
# interpreter's fast path for calls does not see. Asked a second time, it returns that list.
_ask: Callable[[Message], Any] = operator.methodcaller("headers")


def _headers_of(message: Message) -> Headers:
    """A record's headers. To be asked for once only."""
    try:
        return _ask(message) or []
    except (SystemError, UnicodeDecodeError):
        return list(_UNREADABLE)
