"""The producer: in order, idempotent, acknowledged by all in-sync replicas, and never giving up on what may still succeed.

`message.timeout.ms=0` keeps a record until the broker has it, so that nothing overtakes. A record that the broker refuses
ends this producer (`enable.gapless.guarantee`) before a later one of the partition gets in: the caller starts anew from
the last acknowledged position, with the refused records under suspicion.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onceward_outbox_relay.layout import Headers
from onceward_outbox_relay.positions import Chunk
from onceward_runtime import events, log
from onceward_runtime.kafka import LOGGER, broker_error
from onceward_schemas.errors import OncewardError

Suspect = tuple[str | None, bytes]
"""Topic, and a digest of key and value."""

_POISON: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError._BAD_MSG,
    }
)
_TOPIC: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
    }
)
_OURS: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})


class SinkFailedError(OncewardError):
    """The producer cannot go on; what it did not deliver must be read again."""


class Batch(Chunk):
    """A chunk whose rows report their delivery here."""

    __slots__ = ("_sink",)

    def __init__(self, sink: KafkaSink) -> None:
        super().__init__()
        self._sink = sink

    def done(self, error: KafkaError | None, message: Message) -> None:
        # The client may call this with its fatal error pending as an exception, and then every call made here fails with
        # a SystemError (confluent-kafka 2.16); so there is none.
        if error is None:
            self.settled += 1
        else:
            self._sink.reports += ((error, message),)


class KafkaSink:
    """One producer at a time, rebuilt after a failure."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._config = _DEFAULTS | config
        self.batch_bytes = int(self._config["batch.size"])
        self.max_bytes = int(self._config["message.max.bytes"])
        """Larger records are refused before they are sent."""
        self.suspects: set[Suspect] = set()
        self.doubted: dict[str, KafkaError] = {}
        """Topics that a delivery found missing or forbidden."""
        self.failure: KafkaError | None = None
        self._fatal: KafkaError | None = None
        self.reports: tuple[tuple[KafkaError, Message], ...] = ()
        """Deliveries that failed, not looked at yet."""
        self.refusals = 0
        """How many producers failed one after the other for a cause that no parked row removes, and nothing got through."""
        self.lost_since: float | None = None
        """Since when no broker answers, as far as the client has said."""
        self._producer = self._build()

    def _build(self) -> Producer:
        try:
            producer = Producer(self._config | {"batch.size": self.batch_bytes, "error_cb": self._on_error})
        except KafkaException as error:
            raise broker_error(error, "The settings for Kafka are not usable") from error
        self.enqueue: Callable[..., None] = producer.produce
        """The client's own call, for the inner loop: `produce` without its care."""
        return producer

    def produce(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        batch: Batch,
        pulse: Callable[[], None],
    ) -> None:
        """Queue one record. While the queue is full nothing else happens but deliveries and `pulse`.

        Raises: SinkFailedError; KafkaException for a record that cannot be sent as it is.
        """
        while True:
            try:
                self._producer.produce(topic, value, key, headers=headers, on_delivery=batch.done)  # type: ignore[arg-type]
                return
            except BufferError:
                self.poll(0.01)
                pulse()
            except KafkaException as error:
                if error.args[0].code() in _POISON:
                    raise
                raise SinkFailedError(f"Kafka's client cannot go on: {error.args[0].str()}.") from error

    def _refused(self, error: KafkaError, message: Message) -> None:
        """A delivery report says no."""
        code = error.code()
        if code in _OURS:
            return
        if code in _POISON:
            self.suspects.add(suspect(message.topic(), message.key(), message.value()))
        elif code in _TOPIC:
            self.doubted[str(message.topic())] = error
        if self.failure is None or code in _POISON or code in _TOPIC:
            self.failure = error

    def poll(self, seconds: float) -> None:
        """Serve delivery reports. Raises: SinkFailedError."""
        try:
            self._producer.poll(seconds)
        except (KafkaException, SystemError) as error:
            self._fatal = _fatal(error)
        self._check()

    def flush(self, seconds: float) -> None:
        """Send at once, and wait for deliveries at most so long. Raises: SinkFailedError."""
        try:
            self._producer.flush(seconds)
        except (KafkaException, SystemError) as error:
            self._fatal = _fatal(error)
        self._check()

    def _on_error(self, error: KafkaError) -> None:
        """The client's own troubles. Called within `poll` and `flush`."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self.lost_since is None:
            self.lost_since = time.monotonic()
            log.emit(events.BROKER_LOST, service="relay", error=error.str())

    def heard(self) -> None:
        """A broker has acknowledged something lately."""
        self.refusals = 0
        if self.lost_since is not None:
            log.emit(events.BROKER_BACK, service="relay", seconds=round(time.monotonic() - self.lost_since, 3))
            self.lost_since = None

    def _check(self) -> None:
        if self._fatal is not None:
            # The client raises it once, ahead of the report that says which record was refused: wait for that.
            deadline = time.monotonic() + _REPORT_SECONDS
            while not self.reports and time.monotonic() < deadline:
                with contextlib.suppress(KafkaException, SystemError):
                    self._producer.poll(0.02)
            self.failure = self._fatal
        if self.reports:
            reports, self.reports = self.reports, ()
            for error, message in reports:
                self._refused(error, message)
        if self.failure is not None:
            raise SinkFailedError(f"Kafka refused a record: {self.failure.str()}.")

    @property
    def outstanding(self) -> int:
        """How many records are queued or on their way."""
        return len(self._producer)

    def rebuild(self) -> None:
        """Drop what is queued and begin with a new producer. What was on its way may still arrive, as a repeat."""
        old = self._producer
        _let_go(old)
        if self.failure is None or self.failure.code() not in _POISON | _TOPIC:
            self.refusals += 1
        self.failure = self._fatal = None
        self.reports = ()
        self._producer = self._build()

    def close(self) -> None:
        """Let go of what is left; the sink is of no use after that."""
        _let_go(self._producer)
        del self._producer, self.enqueue  # its callbacks refer to us, and a client that nobody closes logs on

    def limit_batches(self, limit: int) -> bool:
        """A topic accepts batches of `limit` bytes at most. Whether that needs a new producer."""
        if limit - _BATCH_OVERHEAD >= self.batch_bytes:
            return False
        self.batch_bytes = max(1_000, limit - _BATCH_OVERHEAD)
        return True


_BATCH_OVERHEAD = 4_096
_REPORT_SECONDS = 1.0


def _let_go(producer: Producer) -> None:
    with contextlib.suppress(KafkaException, SystemError):
        producer.purge()
        producer.flush(0.5)


def _fatal(error: KafkaException | SystemError) -> KafkaError:
    cause = error.args[0]
    return cause if isinstance(cause, KafkaError) else KafkaError(KafkaError._FATAL)


def is_poison(error: KafkaError) -> bool:
    """Whether the record itself is at fault, so that it will never be accepted."""
    return error.code() in _POISON


def suspect(topic: str | None, key: Any, value: Any) -> Suspect:
    """How a refused record is recognised when it is read again; delivery reports carry no headers."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (key, value):
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"-" if data is None else b"%d:" % len(data) + data)
    return topic, digest.digest()


_DEFAULTS: dict[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "enable.gapless.guarantee": True,
    "partitioner": "murmur2_random",
    "allow.auto.create.topics": False,
    "message.timeout.ms": 0,
    # How long a topic may be missing from the metadata before its records fail: the default waits half a minute.
    "topic.metadata.propagation.max.ms": 5_000,
    "message.max.bytes": 1_000_000,
    "batch.size": 1_000_000,
    "linger.ms": 5,
    "queue.buffering.max.kbytes": 16_384,
    "queue.buffering.max.messages": 20_000,
}


class _Unremarkable(logging.Filter):
    """librdkafka warns at every start that the gapless guarantee is experimental; docs/decisions says why it is used."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "enable.gapless.guarantee" not in record.getMessage()


LOGGER.addFilter(_Unremarkable())
