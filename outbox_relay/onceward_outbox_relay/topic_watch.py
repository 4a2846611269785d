"""Asks Kafka, in a thread of its own, which topics exist and how large their records may be.

Producing to a topic that does not exist would wait for ever, so nothing is produced to a topic before it was found here.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]


class Found(NamedTuple):
    """A topic that can be produced to."""

    max_bytes: int | None
    """The topic's limit of a batch, where we may read it."""


class Missing(NamedTuple):
    """The broker says that it has no such topic, or not for us."""

    reason: str
    error: str
    since: float
    """When it first said so, on the monotonic clock."""
    seen: float
    """When it last said so."""


Answer = Found | Missing


class TopicWatch:
    """Answers by topic; none yet while the broker has not been reached. A missing topic is asked about again."""

    def __init__(self, config: dict[str, Any], *, again_seconds: float = 1.0) -> None:
        self._config = config
        self._again_seconds = again_seconds
        self._answers: dict[str, Answer] = {}
        self._wanted: set[str] = set()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def answer(self, topic: str) -> Answer | None:
        """What is known; asks when nothing is."""
        known = self._answers.get(topic)
        if not isinstance(known, Found) and topic not in self._wanted:
            self._wanted.add(topic)
            self._wake.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="onceward-topics", daemon=True)
                self._thread.start()
        return known

    def doubt(self, topic: str, reason: str, error: str) -> None:
        """A delivery found the topic missing or forbidden, whatever the metadata says."""
        known = self._answers.get(topic)
        now = time.monotonic()
        since = known.since if isinstance(known, Missing) else now
        self._answers[topic] = Missing(reason, error, since, now)

    def forget(self, topic: str) -> None:
        """Ask again when the topic is next needed."""
        self._answers.pop(topic, None)

    def close(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(10)

    def _run(self) -> None:
        client = AdminClient(self._config)
        while not self._stopping:
            self._wake.clear()
            for topic in list(self._wanted):
                if self._stopping:
                    return
                answer = self._ask(client, topic)
                if answer is not None:
                    self._answers[topic] = answer
                if isinstance(answer, Found):
                    self._wanted.discard(topic)
            if self._wanted:
                time.sleep(0 if self._stopping else self._again_seconds / 5)
                self._wake.wait(self._again_seconds)
            else:
                self._wake.wait()

    def _ask(self, client: AdminClient, topic: str) -> Answer | None:
        try:
            metadata = client.list_topics(topic, timeout=5).topics[topic]
        except (KafkaException, KeyError):
            return None  # not reached: neither found nor missing
        if metadata.error is None and metadata.partitions:
            return Found(_max_bytes(client, topic))
        code = metadata.error.code() if metadata.error else KafkaError.UNKNOWN_TOPIC_OR_PART
        if code not in _REASONS:
            return None  # passing, as "leader not available"
        before = self._answers.get(topic)
        now = time.monotonic()
        since = before.since if isinstance(before, Missing) else now
        return Missing(_REASONS[code], metadata.error.str() if metadata.error else "no partitions", since, now)


_REASONS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "unknown_topic",
    KafkaError._UNKNOWN_TOPIC: "unknown_topic",
    KafkaError._UNKNOWN_PARTITION: "unknown_topic",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "not_permitted",
    KafkaError.TOPIC_EXCEPTION: "invalid_topic",
}


def reason_of(error: KafkaError) -> str:
    """The reason code for a topic that a delivery could not reach."""
    return _REASONS.get(error.code(), "unknown_topic")


def _max_bytes(client: AdminClient, topic: str) -> int | None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    with contextlib.suppress(KafkaException, KeyError, ValueError, TypeError):
        config = client.describe_configs([resource], request_timeout=5)[resource].result(timeout=6)
        return int(config["max.message.bytes"].value)
    return None
