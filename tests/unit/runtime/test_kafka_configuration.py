"""The client configuration that the promises rest on, and what Kafka's errors become."""

from __future__ import annotations

import logging
import socket
from datetime import timedelta

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from onceward_runtime import kafka
from onceward_runtime.settings import Settings
from onceward_schemas.errors import BrokerError, BrokerUnavailableError

SETTINGS = Settings(kafka_bootstrap_servers="127.0.0.1:1")
SOON = timedelta(seconds=0.3)


def test_producers_are_idempotent_and_partition_as_java_does() -> None:
    found = kafka.producer_config(SETTINGS)
    assert found["acks"] == "all"
    assert found["enable.idempotence"] is True
    assert found["partitioner"] == "murmur2_random"
    assert found["allow.auto.create.topics"] is False
    Producer(found | {"log_level": 0})


def test_consumers_commit_by_hand_from_the_earliest_offset() -> None:
    found = kafka.consumer_config(SETTINGS, "g", {"max.poll.interval.ms": 60_000})
    assert found["group.id"] == "g"
    assert found["enable.auto.commit"] is False
    assert found["auto.offset.reset"] == "earliest"
    assert found["partition.assignment.strategy"] == "cooperative-sticky"
    assert found["max.poll.interval.ms"] == 60_000
    Consumer(found | {"log_level": 0}).close()


def test_an_unreachable_broker_is_named_with_a_remedy() -> None:
    with pytest.raises(BrokerUnavailableError, match=r"127\.0\.0\.1:1 cannot be used.*refused.*BOOTSTRAP_SERVERS"):
        kafka.check(SETTINGS, timeout=SOON)


def test_waiting_for_an_unreachable_broker_ends() -> None:
    with pytest.raises(BrokerUnavailableError):
        kafka.wait(SETTINGS, timeout=SOON)


def test_a_listener_that_never_answers_is_a_time_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        mute = Settings(kafka_bootstrap_servers=f"127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(BrokerUnavailableError):
            kafka.check(mute, timeout=SOON)


def test_contradicting_settings_are_refused() -> None:
    with pytest.raises(BrokerError, match=r"sasl\.username.*ONCEWARD_KAFKA"):
        kafka.admin(Settings(kafka_security_protocol="SASL_PLAINTEXT", kafka_sasl_mechanism="PLAIN"))


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (KafkaError._AUTHENTICATION, "SASL"),
        (KafkaError._SSL, "SSL_CA"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "Grant"),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, "topics apply"),
        (KafkaError._TRANSPORT, "Start the broker"),
    ],
)
def test_each_cause_has_its_remedy(code: int, remedy: str) -> None:
    found = kafka.broker_error(KafkaException(KafkaError(code, "reason")), "Topic t cannot be read")
    assert found.message.startswith("Topic t cannot be read: ")
    assert remedy in (found.remedy or "")


def test_a_repeated_log_line_is_passed_on_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "onceward.kafka"):
        for after in range(50):
            kafka.LOGGER.warning("x:1: Connect failed (after %dms in state CONNECT)", after)
        kafka.LOGGER.warning("another line")
    assert len(caplog.records) == 2
