"""The one thread that talks to Kafka: fetches, follows rebalances, pauses what is not due, commits what is settled.

It never waits for a handler, so it never misses a poll; it commits an offset only when everything before it is settled.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition

from onceward_consumer.buffer import Buffer
from onceward_consumer.clocks import DatabaseClock
from onceward_consumer.commits import TOPIC_GONE, Commits
from onceward_consumer.deliveries import Delivery, Headers
from onceward_consumer.handlers import Handler, cell_kind
from onceward_consumer.policy import TOLERANCE
from onceward_consumer.starts import Start, Starts
from onceward_consumer.tenures import Marks, Tenure, TopicIds
from onceward_runtime import events, log
from onceward_runtime.kafka import broker_error
from onceward_schemas import headers
from onceward_schemas.errors import BrokerError

_log = logging.getLogger("onceward.consumer")
_BATCH = 500
_COMMIT_SECONDS = 0.1
_FULL_SECONDS = 0.2
"""How long a lane that has filled the buffer waits for room before it is paused, since a pause throws away what the client
has fetched ahead."""
_OTHERS_SECONDS = 0.01
"""The same where other lanes wait meanwhile."""
_IDLE_SECONDS = 0.1
_EARLY_SECONDS = 1.0
_TOPICS_SECONDS = 2.0
"""How often topic ids are compared. The client itself goes on in a topic that was made again at once as if it were the same,
so what it fetched meanwhile may have run too early; nothing is skipped."""
_ASK_SECONDS = 10.0
_PLACE_SECONDS = 1.0
_NOT_IN_LOG = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION})
_ENDS = frozenset({KafkaError._FATAL, KafkaError._FENCED, KafkaError.FENCED_INSTANCE_ID})
"""The client does nothing any more once it has said so."""


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
        topic_ids: TopicIds,
        ignores: frozenset[str] = frozenset(),
        revoke_wait: timedelta = timedelta(seconds=2),
        marks: Marks,
        wary: Callable[[], bool],
    ) -> None:
        """`topics` gives for each topic its lane, and its delay where it is a tier.

        `wary` says whether the first commands of a partition that was not handed over can be run in cells.
        """
        self._revoke_seconds = revoke_wait.total_seconds()
        self._config = dict(config)
        self._group = group
        self._topics = dict(topics)
        self._lanes = {lane for lane, _ in topics.values()}
        self._handlers = handlers
        self._buffer = buffer
        self._clock = clock
        self._ignores = ignores
        self._settle: Callable[[], None] = lambda: None
        self._tenures: dict[tuple[str, int], Tenure] = {}
        self._former: list[Tenure] = []
        self._held: set[tuple[str, int]] = set()
        self._refused: set[tuple[str, int]] = set()
        self._topic_ids = topic_ids
        self._marks = marks
        self._wary = wary
        self._starts = Starts(group, topic_ids, marks)
        self._commits = Commits(group)
        self._check_at = self._place_at = 0.0
        self._stopping = threading.Event()
        self._full: frozenset[str] = frozenset()
        """Lanes of which nothing is fetched now."""
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
        if self.failure is not None:
            settle()

    @property
    def running(self) -> bool:
        """Whether the thread lives."""
        return self._thread.is_alive()

    def ahead(self) -> Counter[str]:
        """By lane, how many records are finished that cannot be committed yet."""
        counts: Counter[str] = Counter()
        for tenure in self.tenures():
            counts[self._topics[tenure.topic][0]] += tenure.offsets.ahead
        return counts

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
            self._end_tenures([TopicPartition(*address) for address in self._tenures])  # others may have them now
        finally:
            self._leave(consumer)

    def _leave(self, consumer: Consumer) -> None:
        try:
            self._commit(consumer, asynchronous=False, hand_over=True)
        except KafkaException as error:
            self._commits.failed(error.args[0], self._tenures.keys())
        try:
            consumer.close()
        except (KafkaException, RuntimeError) as error:
            _log.warning("The consumer did not close well: %s", error)

    def _turn(self, consumer: Consumer) -> None:
        full = self._buffer.full(self._full)
        if newly := full - self._full:
            self._buffer.wait_for_room(_FULL_SECONDS if len(self._lanes) == 1 else _OTHERS_SECONDS, newly)
            full = self._buffer.full(full)
        if full != self._full:
            self._full = full
            self._align(consumer)
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
            self._look_at_topics(consumer, now)

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
                self._report(error, message)
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            tenure = tenures.get((topic, partition))  # type: ignore[arg-type]
            if tenure is None or not tenure.placed:
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
            if tenure.wary:
                _be_wary(tenure, delivery)
            if (reason := self._not_ours(delivery)) is not None:
                tenure.offsets.finish(delivery.offset)
                events.SKIPPED.labels(delivery.lane, reason).inc()
            elif tenure.delay is not None and self._must_wait(tenure, delivery):
                tenure.waiting.append(delivery)
            else:
                ready.append(delivery)
        if ready:
            self._buffer.add(ready)
        self._align(consumer)

    def _not_ours(self, delivery: Delivery) -> str | None:
        """Why a record is left to other groups, if it is. One sent to this group alone is in its ledger, and never is."""
        if (envelope := delivery.envelope) is None:
            return None
        group = envelope.context.group
        if group is None:
            return "ignored_type" if envelope.type in self._ignores else None
        return "other_group" if group != self._group else None

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
            if not tenure.waiting or self._topics[tenure.topic][0] in self._full:
                continue
            due: list[Delivery] = []
            while tenure.waiting and self._seconds_until_due(tenure.waiting[0]) <= 0:
                due.append(tenure.waiting.popleft())
            if due:
                self._buffer.add(due)
            if not tenure.waiting:
                self._align(consumer)

    def _align(self, consumer: Consumer) -> None:
        """Pause and resume what should be: the client keeps a pause even of a partition that goes and comes back."""
        full, topics = self._full, self._topics
        wanted = {
            a for a, t in self._tenures.items() if t.waiting or not t.placed or (full and topics[t.topic][0] in full)
        }
        if wanted == self._held:
            return
        if freed := self._held - wanted:
            consumer.resume([TopicPartition(*address) for address in freed])
        if more := wanted - self._held:
            consumer.pause([TopicPartition(*address) for address in more])
        self._held = wanted

    def _look_at_topics(self, consumer: Consumer, now: float) -> None:
        """Find topics that were deleted and made again, and begin anew with them."""
        if (ids := self._topic_ids.answer()) is not None:
            for tenure in self._tenures.values():
                found = ids.get(tenure.topic)
                if found and tenure.topic_id and found != tenure.topic_id:
                    tenure.placed = False
                    self._place_at = now
                elif found is not None and tenure.address in self._refused:
                    self._refused.discard(tenure.address)
                    tenure.offsets.forget_report()
            self._align(consumer)
        if now >= self._check_at:
            self._check_at = now + _TOPICS_SECONDS
            self._topic_ids.ask({tenure.topic for tenure in self._tenures.values()}, _ASK_SECONDS)
        if now >= self._place_at and any(not tenure.placed for tenure in self._tenures.values()):
            self._place_at = now + _PLACE_SECONDS
            self._place(consumer)

    def _place(self, consumer: Consumer) -> None:
        """Fetch from where it is right what is fetched from nowhere, or from the wrong place."""
        starts = self._starts.of(consumer, [tenure for tenure in self._tenures.values() if not tenure.placed])
        if not starts:
            return
        self._keep(starts)
        self._mark(consumer, [start.tenure for start in starts])
        partitions = [start.partition() for start in starts]
        if held := self._held & {start.tenure.address for start in starts}:
            consumer.resume([TopicPartition(*address) for address in held])
            self._held -= held
        try:
            with suppress(KafkaException):  # a try that failed half-way has done it already
                consumer.incremental_unassign(partitions)
            consumer.incremental_assign(partitions)
        except KafkaException as error:
            _log.warning("Fetching from elsewhere has to wait: %s", error)
            for start in starts:
                start.tenure.placed, start.tenure.topic_id = False, None
        self._align(consumer)

    def _keep(self, starts: Iterable[Start]) -> None:
        for tenure, _ in starts:
            before = self._tenures[tenure.address]
            if before is not tenure:  # what was fetched of the former log exists nowhere else, and is run
                self._former.append(before)
                self._tenures[tenure.address] = tenure

    def _commit(
        self,
        consumer: Consumer,
        *,
        asynchronous: bool,
        tenures: Iterable[Tenure] | None = None,
        hand_over: bool = False,
    ) -> None:
        chosen = list(self._tenures.values() if tenures is None else tenures)
        holder = None if hand_over else self._marks.holder
        offsets = [found for tenure in chosen if (found := tenure.commit(holder)) is not None]
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
            self._commits.failed(error.args[0], [tenure.address for tenure in chosen])

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Called from a poll with the fate of an asynchronous commit; what failed is committed again.

        Not so where the topic is gone: its offset means nothing in one of the same name that is made later.
        """
        failed: dict[int, list[tuple[str, int]]] = {}
        causes: dict[int, KafkaError] = {}
        for partition in partitions:
            if (cause := partition.error or error) is None:
                continue
            address = partition.topic, partition.partition
            failed.setdefault(cause.code(), []).append(address)
            causes[cause.code()] = cause
            if cause.code() in TOPIC_GONE:
                self._refused.add(address)
                self._check_at = 0.0
            elif (tenure := self._tenures.get(address)) is not None:
                tenure.offsets.forget_report()
        for code, addresses in failed.items():
            self._commits.failed(causes[code], addresses)
        if done := [p for p in partitions if p.error is None and error is None]:
            self._commits.done(done)

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        tenures = [Tenure(p.topic, p.partition, self._topics[p.topic][1]) for p in partitions]
        self._tenures.update({tenure.address: tenure for tenure in tenures})
        begin = {start.tenure.address: start.offset for start in self._starts.of(consumer, tenures)}
        self._mark(consumer, tenures)
        consumer.incremental_assign(
            [TopicPartition(*tenure.address, begin.get(tenure.address, OFFSET_BEGINNING)) for tenure in tenures]
        )
        self.assigned = True
        self._align(consumer)
        self._tell(events.PARTITIONS_ASSIGNED, "assigned", partitions)

    def _mark(self, consumer: Consumer, tenures: Sequence[Tenure]) -> None:
        """Let the commits say whose they are, before anything of them is run; see whose they were."""
        wary = [tenure for tenure in tenures if tenure.wary]
        if wary and self._wary():
            log.emit(events.PARTITIONS_WARY, group=self._group, partitions=len(wary))
        else:
            for tenure in wary:
                tenure.wary = 0
        try:
            self._commit(consumer, asynchronous=False, tenures=tenures)
        except KafkaException as error:
            self._commits.failed(error.args[0], [tenure.address for tenure in tenures])

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Nothing of them is handed out any more; what runs may finish for a while, and what is settled is committed.

        What still runs then goes on without them: the ledger keeps it apart from whoever has the partition next.
        """
        gone = self._end_tenures(partitions)
        unfinished = self._buffer.wait_for_runners(gone, 0.0 if self._stopping.is_set() else self._revoke_seconds)
        try:
            self._commit(consumer, asynchronous=False, tenures=gone, hand_over=True)
        except KafkaException as error:
            self._commits.failed(error.args[0], [tenure.address for tenure in gone])
        self._align(consumer)
        consumer.incremental_unassign(partitions)
        self._tell(events.PARTITIONS_REVOKED, "revoked", partitions, unfinished=unfinished)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._end_tenures(partitions)
        self.assigned = bool(self._tenures)
        self._align(consumer)
        consumer.incremental_unassign(partitions)
        self._tell(events.PARTITIONS_LOST, "lost", partitions)

    def _end_tenures(self, partitions: Iterable[TopicPartition]) -> list[Tenure]:
        gone = [t for p in partitions if (t := self._tenures.pop((p.topic, p.partition), None)) is not None]
        addresses = {(p.topic, p.partition) for p in partitions}
        for tenure in [*gone, *(former for former in self._former if former.address in addresses)]:
            tenure.active = False
            tenure.waiting.clear()
        self._former = [former for former in self._former if former.active]
        self._commits.forget(gone)
        self._buffer.drop_revoked()
        return gone

    def _tell(self, event: events.Event, kind: str, partitions: list[TopicPartition], **more: int) -> None:
        events.REBALANCES.labels(self._group, kind).inc()
        events.ASSIGNED_PARTITIONS.labels(self._group).set(len(self._tenures))
        log.emit(event, group=self._group, partitions=len(partitions), **more)

    def _report(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        if error.fatal() or code in _ENDS:
            raise _ended(error)
        tenure = self._tenures.get((message.topic() or "", -1 if (p := message.partition()) is None else p))
        if code in _NOT_IN_LOG and tenure is not None:
            tenure.placed, tenure.astray = False, message.offset()
            self._place_at = 0.0
            return
        _log.warning("Kafka says: %s", error)


def _be_wary(tenure: Tenure, delivery: Delivery) -> None:
    """One of the first records after a worker's death: it may be why."""
    tenure.wary -= 1
    handler = delivery.handler
    if handler is not None and handler.mode != "external":
        delivery.kind = cell_kind(handler)


def _ended(error: KafkaError) -> BrokerError:
    doing = "The consumer cannot go on"
    said = error.str().lower()
    if "fenced" not in said and "instance id" not in said:
        return broker_error(error, doing)
    return BrokerError(f"{doing}: {error.str().rstrip('.')}.", remedy="Give each worker an --instance of its own.")


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
