"""Topics for tests: made, listed, deleted."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

_SECONDS = 15


def create_topics(bootstrap: str, partitions: Mapping[str, int]) -> None:
    """Create topics with their numbers of partitions; they exist on return."""
    admin = _admin(bootstrap)  # held until the answers are there: a client that is dropped forgets them
    topics = [NewTopic(name, count, 1) for name, count in partitions.items()]
    for future in admin.create_topics(topics, operation_timeout=_SECONDS).values():
        future.result(_SECONDS)


def topic_names(bootstrap: str) -> set[str]:
    """All topics of the broker."""
    return set(_admin(bootstrap).list_topics(timeout=_SECONDS).topics)


def delete_topics(bootstrap: str, prefix: str) -> None:
    """Delete all topics that begin with the prefix."""
    admin = _admin(bootstrap)
    names = [name for name in admin.list_topics(timeout=_SECONDS).topics if name.startswith(prefix)]
    if not names:
        return
    for future in admin.delete_topics(names, operation_timeout=_SECONDS).values():
        try:
            future.result(_SECONDS)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:  # the test deleted it
                raise


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
