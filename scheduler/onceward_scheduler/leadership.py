"""Which partitions of the scheduler's topic this process has: a hint from Kafka, which an epoch in PostgreSQL turns into a right.

The topic carries no records; its consumer group only shares out partitions among the schedulers of one application.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from onceward_runtime import events, kafka, log
from onceward_runtime.service import Loop
from onceward_runtime.settings import Settings
from onceward_schemas import topics
from onceward_schemas.errors import BrokerError

_POLL_SECONDS = 0.2
_QUIET_SECONDS = 15.0
_GROUP = "onceward.scheduler."


class Leadership:
    """Membership in the group, in a thread of its own. `on_change` is called when partitions come or go."""

    def __init__(self, app: str, settings: Settings, on_change: Callable[[], None]) -> None:
        self._app = app
        self._settings = settings
        self._on_change = on_change
        self._lock = threading.Lock()
        self._assigned: dict[int, int] = {}
        self._serial = 0
        self._rejoin = threading.Event()
        self._loop = Loop("scheduler-leadership", self._run)
        self._troubled_at: float | None = None

    def partitions(self) -> int:
        """How many partitions the topic has.

        Raises: BrokerError when it is missing or the cluster does not answer.
        """
        count = kafka.topics(self._settings).get(topics.SCHEDULER)
        if count is None:
            raise BrokerError(f"The topic {topics.SCHEDULER} is missing.", remedy="Run `onceward topics apply`.")
        return count

    def start(self) -> None:
        """Join the group; partitions come later."""
        self._loop.start()

    def stop(self) -> None:
        """Leave the group, so that others take over at once."""
        self._loop.stop()

    def assigned(self) -> dict[int, int]:
        """The partitions that Kafka gave to this process, each with a number that tells one tenure from the next."""
        with self._lock:
            return dict(self._assigned)

    def rejoin(self) -> None:
        """Give everything back and ask again: PostgreSQL knows another leader, so what Kafka said is out of date."""
        self._rejoin.set()

    def alive(self) -> bool:
        """Whether the thread polls."""
        return self._loop.alive()

    def ready(self) -> bool:
        """Whether the thread polls and the brokers answer. A standby without partitions is ready."""
        return self._loop.ready() and not self._troubled()

    @property
    def ended(self) -> bool:
        """Whether the thread is gone although nobody stopped it."""
        return self._loop.ended

    @property
    def error(self) -> BaseException | None:
        """What ended it."""
        return self._loop.error

    def _run(self, loop: Loop) -> None:
        group = _GROUP + self._app
        config = kafka.consumer_config(
            self._settings,
            group,
            {
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 1_500,
                "max.poll.interval.ms": 10_000,
                "error_cb": self._on_error,
            },
        )
        try:
            consumer = Consumer(config)
        except KafkaException as error:
            raise kafka.broker_error(error) from error
        try:
            self._subscribe(consumer)
            while not loop.stopping:
                loop.beat()
                if self._rejoin.is_set():
                    self._rejoin.clear()
                    consumer.unsubscribe()
                    self._forget(list(self.assigned()), "fenced")
                    self._subscribe(consumer)
                consumer.poll(_POLL_SECONDS)
        finally:
            self._forget(list(self.assigned()), "stopped")
            consumer.close()

    def _subscribe(self, consumer: Consumer) -> None:
        consumer.subscribe(
            [topics.SCHEDULER],
            on_assign=lambda _, found: self._on_assign(found),
            on_revoke=lambda _, found: self._forget([each.partition for each in found], "revoked"),
            on_lost=lambda _, found: self._forget([each.partition for each in found], "lost"),
        )

    def _on_assign(self, found: list[TopicPartition]) -> None:
        with self._lock:
            for each in found:
                self._serial += 1
                self._assigned[each.partition] = self._serial
        self._on_change()

    def _forget(self, partitions: list[int], reason: str) -> None:
        with self._lock:
            gone = [partition for partition in partitions if self._assigned.pop(partition, None) is not None]
        for partition in gone:
            log.emit(events.LEADERSHIP_LOST, app=self._app, partition=partition, reason=reason)
        if gone:
            self._on_change()

    def _on_error(self, error: Any) -> None:
        if not self._troubled():
            log.emit(events.BROKER_LOST, service="scheduler", error=str(error))
        self._troubled_at = time.monotonic()

    def _troubled(self) -> bool:
        """A client that cannot connect says so again and again; one that says nothing any more is connected."""
        return self._troubled_at is not None and time.monotonic() - self._troubled_at < _QUIET_SECONDS
