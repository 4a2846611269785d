"""The producer lets nothing overtake a record that the broker refuses, and tells which one it was."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException

from onceward_outbox_relay.kafka_sink import Batch, KafkaSink, SinkFailedError, suspect
from tests.support.relay import make_topic, read
from tests.support.services import Services


def nothing() -> None:
    pass


def test_nothing_of_the_partition_gets_in_behind_a_refused_record(services: Services, topic_prefix: str) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "gap", **{"max.message.bytes": "9000"})
    sink = KafkaSink({"bootstrap.servers": services.bootstrap, "batch.size": 1000})
    batch = Batch(sink)
    values = [b"y" * 500 if number != 10 else b"x" * 20_000 for number in range(30)]
    for number, value in enumerate(values):
        sink.produce(topic, b"a", value, [("id", b"%d" % number)], batch, nothing)
    with pytest.raises(SinkFailedError, match="too large"):
        sink.flush(5)  # long enough for all the others
    assert batch.settled == 10
    assert sink.suspects == {suspect(topic, b"a", values[10])}
    sink.rebuild()
    assert [record.id for record in read(services.bootstrap, topic, 10, 5)] == [str(n) for n in range(10)]
    again = Batch(sink)
    sink.produce(topic, b"a", b"fine", [("id", b"again")], again, nothing)
    sink.flush(5)
    assert again.settled == 1
    sink.close()


def test_a_record_larger_than_any_broker_takes_is_refused_before_it_is_sent(
    services: Services, topic_prefix: str
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "large")
    sink = KafkaSink({"bootstrap.servers": services.bootstrap})
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        sink.produce(topic, b"a", b"x" * 1_100_000, [], Batch(sink), nothing)
    sink.close()
