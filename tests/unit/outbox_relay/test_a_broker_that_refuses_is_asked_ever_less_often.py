"""A broker that refuses batch after batch is not asked ten times a second for ever, though each stream begins well."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message
from pydantic import SecretStr

from onceward_outbox_relay.kafka_sink import SinkFailedError
from onceward_outbox_relay.relay import Relay
from onceward_runtime.service import Loop
from onceward_runtime.settings import Settings


class Waits(Loop):
    """A loop that writes down how long it was to wait."""

    def __init__(self) -> None:
        super().__init__("waits", lambda _: None)
        self.seconds: list[float] = []

    def wait(self, seconds: float) -> bool:
        self.seconds.append(seconds)
        return False


class Refused:
    """What the sink asks of a message."""

    def topic(self) -> str:
        return "topic"

    def key(self) -> bytes:
        return b"key"

    value = key


@pytest.fixture
def relay() -> Iterator[Relay]:
    settings = Settings(
        database_url=SecretStr("postgresql://nobody@127.0.0.1:1/none"), kafka_bootstrap_servers="127.0.0.1:1"
    )
    made = Relay(settings)
    yield made
    made._watch.close()
    made._sink.close()


def refuse(relay: Relay, loop: Waits, code: int) -> None:
    """One stream: it begins, and the broker refuses what it sends."""
    relay._set_state(True)
    relay._sink.reports += ((KafkaError(code), cast("Message", Refused())),)
    with pytest.raises(SinkFailedError) as failed:
        relay._sink.poll(0)
    relay._sink.rebuild()
    relay._retry(loop, failed.value)


def test_the_pauses_grow_until_something_gets_through(relay: Relay) -> None:
    loop = Waits()
    for _ in range(7):
        refuse(relay, loop, KafkaError.POLICY_VIOLATION)
    assert loop.seconds == [0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 5.0]
    relay._sink.heard()
    refuse(relay, loop, KafkaError.POLICY_VIOLATION)
    assert loop.seconds[-1] == 0.1


@pytest.mark.parametrize("code", [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_rows_that_will_be_parked_cost_no_longer_pause(relay: Relay, code: Any) -> None:
    loop = Waits()
    for _ in range(3):
        refuse(relay, loop, code)
    assert loop.seconds == [0.1, 0.1, 0.1]
