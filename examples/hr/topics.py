"""Reads whole topics, to compare what Kafka holds with what PostgreSQL says."""

from __future__ import annotations

import uuid

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition


def command_ids(bootstrap: str, topic: str) -> list[str]:
    """The `id` header of every record of the topic, partition by partition, repeats included."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"hr-demo-{uuid.uuid4()}",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        partitions = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
        found: list[str] = []
        unread = set(partitions)
        while unread:
            for message in consumer.consume(1000, 1.0):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                elif error is not None:
                    raise RuntimeError(f"{topic} cannot be read: {error}")
                else:
                    value = dict(message.headers() or [])["id"]
                    found.append(value.decode() if isinstance(value, bytes) else str(value))
        return found
    finally:
        consumer.close()
