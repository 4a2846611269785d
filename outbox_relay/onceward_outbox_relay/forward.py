"""From a row's values to a record in Kafka, or to a place where it waits: the one way for streaming, sweeping and polling.

Rows of a topic that was not found are held in memory, in order, for a grace period, and then parked; other topics go on.
A row that Kafka refuses for good is parked, and the later rows of its topic and key follow it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import psycopg
from confluent_kafka import KafkaException

from onceward_outbox_relay import layout as layouts
from onceward_outbox_relay import parking, pgoutput, topic_watch
from onceward_outbox_relay.kafka_sink import Batch, KafkaSink, SinkFailedError, is_poison, suspect
from onceward_outbox_relay.layout import Headers, Layout, Plan
from onceward_outbox_relay.parking import Key, Parked, Record
from onceward_outbox_relay.topic_watch import Found, Missing, TopicWatch
from onceward_runtime import events, log
from onceward_schemas.errors import OncewardError, TopicNameError
from onceward_schemas.topics import checked

Policy = Literal["park_key", "park_row", "stop"]
_PARK_ROWS, _PARK_BYTES = 200, 1 << 20
_HOLD_ROWS, _HOLD_BYTES = 20_000, 16 << 20


class PoisonRowError(OncewardError):
    """A row can never become a record, and the policy says to stop."""


@dataclass(slots=True)
class _Held:
    """Rows of one topic that wait until it is found."""

    rows: list[tuple[Record, Batch]] = field(default_factory=list)
    since: float = field(default_factory=time.monotonic)
    """An answer older than that says nothing about now."""
    tried: float = 0.0


class Forwarder:
    """Outlives connections: `attach` gives it the present one. Not thread-safe; one loop owns it."""

    def __init__(
        self, layout: Layout, sink: KafkaSink, watch: TopicWatch, *, policy: Policy, grace: timedelta, slot: str
    ) -> None:
        self._layout = layout
        self._sink = sink
        self._watch = watch
        self._policy = policy
        self._grace_seconds = grace.total_seconds()
        self._parked_rows = events.RELAY_ROWS.labels(slot=slot, outcome="parked")
        self._plan: Plan | None = None
        self._routes: dict[bytes | None, str] = {}
        self._limited: dict[bytes | None, tuple[str, int]] = {}
        self._denied: dict[str, Missing] = {}
        self._held: dict[bytes | None, _Held] = {}
        self._held_rows = self._held_bytes = 0
        self._parks: list[tuple[Parked, Batch]] = []
        self._parks_bytes = 0
        self._connection: psycopg.Connection[Any] | None = None
        self._pulse: Callable[[], None] = _nothing
        self._guarded = False
        self.parked = 0
        """How many rows were parked in all."""
        self.blocked: set[Key] = set()
        """Topics and keys with parked rows."""

    # -- life

    def attach(self, connection: psycopg.Connection[Any] | None, pulse: Callable[[], None]) -> None:
        """A new connection: read again which keys are blocked. Without one, nothing can be parked."""
        self._connection = connection
        self._pulse = pulse
        if connection is not None:
            in_memory = {(row.record.topic, row.record.key) for row, _ in self._parks}
            self.blocked = parking.blocked_keys(connection) | {key for key in in_memory if key[1] is not None}
        self._guard()

    def rewound(self) -> None:
        """The rows on their way will be read again: forget them. Learn from what the broker refused."""
        self._held.clear()
        self._parks.clear()
        self._held_rows = self._held_bytes = self._parks_bytes = 0
        for topic, error in self._sink.doubted.items():
            now = time.monotonic()
            since = self._denied[topic].since if topic in self._denied else now
            self._denied[topic] = Missing(topic_watch.reason_of(error), error.str(), since, now)
            self._unroute(topic)
            self._watch.doubt(topic, topic_watch.reason_of(error), error.str())
        self._sink.doubted.clear()
        for topic in {topic for topic, _ in self._sink.suspects if topic is not None}:
            self._unroute(topic)  # its limit may have changed
            self._watch.forget(topic)
        self._guard()

    def _unroute(self, topic: str) -> None:
        self._routes = {key: name for key, name in self._routes.items() if name != topic}
        self._limited = {key: found for key, found in self._limited.items() if found[0] != topic}

    def columns(self, columns: Sequence[pgoutput.Column]) -> None:
        """The table's columns as they are from here on. Raises: DatabaseError."""
        self._plan = layouts.plan(self._layout, columns)

    def _guard(self) -> None:
        self._guarded = bool(self.blocked or self._sink.suspects)

    # -- rows

    def forward(self, values: list[bytes | None], batch: Batch) -> None:
        """Send one row on, counted in `batch`. Blocks, with `pulse`, while Kafka's queue is full.

        Raises: SinkFailedError, PoisonRowError, psycopg.OperationalError.
        """
        plan = self._plan
        assert plan is not None, "an Insert before its Relation"
        batch.wanted += 1
        topic = self._routes.get(values[plan.topic.position])
        if topic is None or self._guarded:
            self._slowly(plan, values, batch)
            return
        try:
            key, value = values[plan.key.position], values[plan.value.position]
            if plan.key.convert is not None and key is not None:
                key = plan.key.convert(key)
            if plan.value.convert is not None and value is not None:
                value = plan.value.convert(value)
            picked = plan.pick(values)
            headers = list(zip(plan.names, picked, strict=True))
            for at, name, convert in plan.converted:
                raw = picked[at]
                if raw is not None:
                    headers[at] = (name, convert(raw))
            try:
                self._sink.enqueue(topic, value, key, headers=headers, on_delivery=batch.done)
            except BufferError:
                self._sink.produce(topic, key, value, headers, batch, self._pulse)
        except (KafkaException, ValueError):  # the slow way tells which of them means what
            self._slowly(plan, values, batch)

    def _slowly(self, plan: Plan, values: list[bytes | None], batch: Batch) -> None:
        """The way of rows that need a second look; `forward` has counted them."""
        routed = layouts.converted(plan.topic, values)
        try:
            name = None if routed is None else self._layout.topic_prefix + routed.decode()
            headers: Headers = [(h.name, layouts.converted(h, values)) for h in plan.headers]
            record = Record(
                layouts.number(plan, values),
                name,
                layouts.converted(plan.key, values),
                layouts.converted(plan.value, values),
                headers,
            )
        except ValueError as error:
            raw: Headers = [(h.name, values[h.position]) for h in plan.headers]
            record = Record(
                layouts.number(plan, values), None, values[plan.key.position], values[plan.value.position], raw
            )
            self._park(record, batch, "undecodable", str(error))
            return
        if name is None or not name:
            self._park(record, batch, "no_topic", f"the column {self._layout.topic!r} is empty")
            return
        self._place(routed, record, batch)

    def _place(self, routed: bytes | None, record: Record, batch: Batch) -> None:
        assert record.topic is not None
        if record.key is not None and (record.topic, record.key) in self.blocked:
            self._park(record, batch, parking.FOLLOWS, "an earlier row of this topic and key is parked")
        elif routed in self._routes or routed in self._limited:
            self._send(routed, record, batch)
        else:
            self._unrouted(routed, record, batch)

    def _send(self, routed: bytes | None, record: Record, batch: Batch) -> None:
        """Produce to a topic that is known. The careful form of what `forward` does."""
        limit = self._limited[routed][1] if routed in self._limited else self._sink.max_bytes
        if parking.size(record) > limit:
            self._park(record, batch, "oversized", f"the record has {parking.size(record)} bytes; {limit} are allowed")
            return
        assert record.topic is not None
        if self._sink.suspects and (mark := suspect(record.topic, record.key, record.value)) in self._sink.suspects:
            if (error := self._alone(record)) is None:
                batch.settled += 1
            else:
                self._park(record, batch, *error)
            self._sink.suspects.discard(mark)
            self._guard()
            return
        try:
            self._sink.produce(record.topic, record.key, record.value, record.headers, batch, self._pulse)
        except KafkaException as error:
            self._park(record, batch, _reason(error.args[0]), error.args[0].str())

    def _alone(self, record: Record) -> tuple[str, str] | None:
        """Produce one record with nothing else on its way; returns reason and error when it is refused for good."""
        assert record.topic is not None
        while self._sink.outstanding:
            self._sink.flush(0.02)
            self._pulse()
        batch = Batch(self._sink)
        try:
            self._sink.produce(record.topic, record.key, record.value, record.headers, batch, self._pulse)
            while not batch.settled:
                self._sink.flush(0.02)
                self._pulse()
        except KafkaException as error:
            return _reason(error.args[0]), error.args[0].str()
        except SinkFailedError:
            failure = self._sink.failure
            if failure is None or not is_poison(failure):
                raise
            self._sink.rebuild()
            return _reason(failure), failure.str()
        return None

    # -- topics not found yet

    def _unrouted(self, routed: bytes | None, record: Record, batch: Batch) -> None:
        assert record.topic is not None
        try:
            checked(record.topic)
        except TopicNameError as error:
            self._park(record, batch, "invalid_topic", error.message)
            return
        held = self._held.setdefault(routed, _Held())
        held.rows.append((record, batch))
        self._held_rows += 1
        self._held_bytes += parking.size(record)
        self._look(routed, held)
        while self._held_rows > _HOLD_ROWS or self._held_bytes > _HOLD_BYTES:
            self._sink.poll(0.02)
            self._pulse()
            self.tick()

    def tick(self) -> None:
        """What is due between rows: held topics, rows to be parked."""
        for routed, held in list(self._held.items()):
            self._look(routed, held)
        self.store()

    def _look(self, routed: bytes | None, held: _Held) -> None:
        """See whether a held topic is found by now, or missing for so long that its rows are parked."""
        first = held.rows[0][0]
        topic = first.topic
        assert topic is not None
        answer = self._watch.answer(topic)
        if isinstance(answer, Found) and (denied := self._denied.get(topic)) is not None:
            answer = self._try(first, denied, held)
        if isinstance(answer, Found):
            self._found(routed, topic, answer)
            self._unhold(routed)
            for record, batch in held.rows:
                self._place(routed, record, batch)
        elif isinstance(answer, Missing) and answer.seen >= max(held.since, answer.since + self._grace_seconds):
            self._unhold(routed)
            for record, batch in held.rows:
                self._park(record, batch, answer.reason, answer.error)

    def _try(self, record: Record, denied: Missing, held: _Held) -> Found | Missing:
        """The metadata is fine, but a delivery was refused: try one record a second."""
        now = time.monotonic()
        if now - held.tried < 1.0:
            return denied
        held.tried = now
        assert record.topic is not None
        try:
            self._alone(record)
        except SinkFailedError:
            if record.topic not in self._sink.doubted:
                raise
            error = self._sink.doubted.pop(record.topic)
            self._sink.rebuild()
            denied = self._denied[record.topic] = denied._replace(error=error.str(), seen=time.monotonic())
            return denied
        del self._denied[record.topic]
        return Found(None)

    def _found(self, routed: bytes | None, topic: str, answer: Found) -> None:
        if answer.max_bytes is not None and answer.max_bytes < self._sink.max_bytes:
            self._limited[routed] = (topic, answer.max_bytes)  # not in routes, so that each row is looked at
        else:
            self._routes[routed] = topic
        if answer.max_bytes is not None and self._sink.limit_batches(answer.max_bytes):
            # Whole batches were too large, then; single rows are measured from here on.
            self._sink.suspects = {found for found in self._sink.suspects if found[0] != topic}
            raise SinkFailedError(f"The topic {topic!r} needs smaller batches.")

    def _unhold(self, routed: bytes | None) -> None:
        held = self._held.pop(routed)
        self._held_rows -= len(held.rows)
        self._held_bytes -= sum(parking.size(record) for record, _ in held.rows)

    # -- parking

    def _park(self, record: Record, batch: Batch, reason: str, error: str) -> None:
        if self._policy == "stop" or record.seq is None or self._connection is None:
            raise PoisonRowError(
                f"Row {record.seq or dict(record.headers).get('id')!r} cannot become a record ({reason}): {error}.",
                remedy="Correct or delete the row, or run the relay with a policy that parks.",
            )
        if record.key is not None and self._policy == "park_key":
            self.blocked.add((record.topic, record.key))
            self._guard()
        self._parks.append((Parked(record, reason, error), batch))
        self._parks_bytes += parking.size(record)
        if len(self._parks) >= _PARK_ROWS or self._parks_bytes >= _PARK_BYTES:
            self.store()

    def store(self) -> None:
        """Commit the rows that are to be parked; then they count as settled."""
        if not self._parks:
            return
        assert self._connection is not None
        parking.park(self._connection, [row for row, _ in self._parks])
        for row, batch in self._parks:
            batch.settled += 1
            if row.reason != parking.FOLLOWS:
                _report(row)
        self._parked_rows.inc(len(self._parks))
        self.parked += len(self._parks)
        self._parks.clear()
        self._parks_bytes = 0

    def release(self) -> None:
        """Send on the parked rows that an operator wants replayed, and those that only followed decided ones."""
        if self._connection is None:
            return
        self.store()
        for key in parking.releasable_keys(self._connection):
            self._release_key(key)

    def _release_key(self, key: Key) -> None:
        assert self._connection is not None
        more = True
        while more:
            records, more = parking.released(self._connection, key)
            sent = self._resend(records)
            parking.mark_replayed(self._connection, records[:sent])
            more = more or sent < len(records)
            if sent < len(records) or not records:
                break
        if not more:
            self.blocked.discard(key)
            self._guard()

    def _resend(self, records: list[Record]) -> int:
        """Deliver parked records in order; returns how many were, up to one that is refused and parked again."""
        assert self._connection is not None
        batch = Batch(self._sink)
        count = 0
        for record in records:
            refused = self._refusal(record)
            mark = suspect(record.topic, record.key, record.value)
            if refused is None and mark in self._sink.suspects:
                refused = self._alone(record)
                self._sink.suspects.discard(mark)
            elif refused is None:
                assert record.topic is not None
                self._sink.produce(record.topic, record.key, record.value, record.headers, batch, self._pulse)
                batch.wanted += 1
            if refused is not None:
                parking.park_again(self._connection, record, *refused)
                break
            count += 1
        while batch.settled < batch.wanted:
            self._sink.flush(0.02)
            self._pulse()
        return count

    def _refusal(self, record: Record) -> tuple[str, str] | None:
        """Why a parked record still cannot be sent; waits a little for its topic to be looked up."""
        if not record.topic:
            return "no_topic", "the record has no topic"
        try:
            checked(record.topic)
        except TopicNameError as error:
            return "invalid_topic", error.message
        until = time.monotonic() + 5
        while not isinstance(answer := self._watch.answer(record.topic), Found):
            if isinstance(answer, Missing) and time.monotonic() > until:
                return answer.reason, answer.error
            self._sink.poll(0.05)
            self._pulse()
        limit = min(answer.max_bytes or self._sink.max_bytes, self._sink.max_bytes)
        if parking.size(record) > limit:
            return "oversized", f"the record has {parking.size(record)} bytes; {limit} are allowed"
        return None


def _nothing() -> None:
    pass


def _reason(error: Any) -> str:
    return "oversized" if "SIZE" in error.name() or "TOO_LARGE" in error.name() else "refused"


def _report(row: Parked) -> None:
    identity = dict(row.record.headers).get("id")
    log.emit(
        events.RELAY_ROW_PARKED,
        seq=row.record.seq,
        command_id=identity.decode(errors="replace") if identity else None,
        topic=row.record.topic,
        reason=row.reason,
        error=row.error,
    )
