"""A worker's time with a partition, and which log its committed offset belongs to.

A topic that is deleted and made again has another id. Every commit carries the id as its metadata, so that whoever gets the
partition later sees that an offset is of a log that is gone, even where the new log is longer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from onceward_consumer.deliveries import Delivery
from onceward_consumer.offsets import Offsets

_TOPIC: Final = "topic-id"
_HELD: Final = "held-by"
WARY_RECORDS: Final = 10_000
"""How many records of a partition that was not handed over are run in cells."""
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_MAY_ANSWER_LATER: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._DESTROY,
    }
)


class Tenure:
    """One tenure of a partition. A tier's records wait here until the first of them is due."""

    __slots__ = ("active", "astray", "delay", "offsets", "partition", "placed", "topic", "topic_id", "waiting", "wary")

    def __init__(self, topic: str, partition: int, delay: timedelta | None) -> None:
        self.topic = topic
        self.partition = partition
        self.delay = delay
        self.active = True
        self.topic_id: str | None = None
        """Of the log that is read; empty where the cluster has none, None while it is not known where to begin."""
        self.placed = False
        """Whether the client fetches from the right place. Until then nothing is taken from it."""
        self.astray: int | None = None
        """An offset that was asked for and is not in the log."""
        self.offsets = Offsets()
        self.waiting: deque[Delivery] = deque()
        self.wary = 0
        """How many of its next records are run in cells: whoever had the partition before died with it."""

    @property
    def address(self) -> tuple[str, int]:
        """(topic, partition)."""
        return self.topic, self.partition

    def finish(self, offset: int) -> None:
        """PostgreSQL holds what became of the record."""
        self.offsets.finish(offset)

    def anew(self, topic_id: str | None) -> Tenure:
        """The tenure of another log under the same name; what waits in memory goes on waiting."""
        other = Tenure(self.topic, self.partition, self.delay)
        other.topic_id = topic_id
        other.waiting = self.waiting
        return other

    def commit(self, holder: str | None) -> TopicPartition | None:
        """What to commit, if there is something new. `holder` is who goes on with it; None hands it over."""
        position = self.offsets.committable(again=holder is None)
        if position is None:
            return None
        return TopicPartition(self.topic, self.partition, position, written(self.topic_id, holder))


class Marks:
    """Who holds a partition, as its commits say: a holder that does not hand it over has died, or is cut off."""

    def __init__(self, incarnation: UUID) -> None:
        self.holder = incarnation.hex

    def is_foreign(self, metadata: str | None) -> bool:
        """Whether the last commit is another holder's that goes on with it."""
        return read_mark(metadata, _HELD) not in (None, self.holder)


def written(topic_id: str | None, holder: str | None) -> str:
    """The metadata of a commit.

    >>> written("0m7q", None), written("", "a1")
    ('topic-id 0m7q', 'held-by a1')
    """
    parts = [f"{name} {value}" for name, value in ((_TOPIC, topic_id), (_HELD, holder)) if value]
    return " ".join(parts)


def written_id(metadata: str | None) -> str | None:
    """The topic id that a commit carries, if it carries one.

    >>> written_id("topic-id 0m7qtG8UTLSQQyudHPJzPA held-by a1")
    '0m7qtG8UTLSQQyudHPJzPA'
    >>> written_id(""), written_id(None)
    (None, None)
    """
    return read_mark(metadata, _TOPIC)


def read_mark(metadata: str | None, name: str) -> str | None:
    """One of the values in a commit's metadata.

    >>> read_mark("topic-id 0m7q held-by a1", "held-by")
    'a1'
    """
    words = (metadata or "").split(" ")
    return dict(zip(words[::2], words[1::2], strict=False)).get(name)


class TopicIds:
    """Asks the cluster for the ids of topics."""

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._asked: dict[str, Future[Any]] = {}

    def read(self, topics: Iterable[str], seconds: float) -> dict[str, str]:
        """The ids, empty where the cluster has none. Topics that are missing, or not heard of in time, are left out."""
        futures = self._ask(topics, seconds)
        wait_for(futures.values(), seconds + 1.0)
        return _answers(futures)

    def ask(self, topics: Iterable[str], seconds: float) -> None:
        """Ask without waiting; `answer` has it later."""
        if not self._asked:
            self._asked = self._ask(topics, seconds)

    def answer(self) -> dict[str, str] | None:
        """What `ask` found out, once; None until it is there."""
        if not self._asked or not all(future.done() for future in self._asked.values()):
            return None
        asked, self._asked = self._asked, {}
        return _answers(asked)

    def _ask(self, topics: Iterable[str], seconds: float) -> dict[str, Future[Any]]:
        names = sorted(set(topics))
        return dict(self._client.describe_topics(TopicCollection(names), request_timeout=seconds)) if names else {}


def _answers(futures: dict[str, Future[Any]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for topic, future in futures.items():
        if not future.done():
            continue
        try:
            identity = str(future.result().topic_id)
        except KafkaException as error:
            if error.args[0].code() in _MAY_ANSWER_LATER:
                continue
            identity = _NO_ID
        found[topic] = "" if identity == _NO_ID else identity
    return found
