"""Outbox rows that Kafka will never accept as they are: oversized, for a topic that does not exist or whose name none can have,
with keys and names too long for an index. They are written by SQL, since publishing refuses what it can see.

Promised: `onceward relay` parks each with a reason and its bytes, other rows flow, and `onceward outbox parked replay` brings
it to Kafka once its cause is gone.
"""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
import pytest

from onceward_producer.outbox import Outbox
from onceward_schemas.codec import Codec
from onceward_schemas.errors import InvalidCommandError, PayloadTooLargeError
from onceward_schemas.registry import RegistryClient
from tests.support import onceward_command as cli
from tests.support.commands import Increment
from tests.support.consumers import eventually
from tests.support.relay import make_topic, outbox_rows, publish, read, slot_name
from tests.support.services import Services

LONG = "".join(str(n * 7919 % 104729) for n in range(2000))
"""10 kB that do not compress well."""


def test_publishing_refuses_what_would_be_parked(services: Services, database: str) -> None:
    registry = RegistryClient(services.registry_url)
    registry.register(Increment.SCHEMA.name, Increment.SCHEMA.avro)
    outbox = Outbox(Codec(registry))
    with psycopg.connect(database) as connection:
        with pytest.raises(PayloadTooLargeError) as large:
            outbox.publish(connection, Increment(counter="a", note="x" * 1_000_000))
        assert "pass a pointer" in str(large.value.remedy)
        with pytest.raises(InvalidCommandError, match=r"counter takes .* bytes; the cap is 1,024") as long:
            outbox.publish(connection, Increment(counter=LONG))
        assert "such as a hash" in str(long.value.remedy)
        connection.commit()
    assert outbox_rows(database) == 0


def test_rows_that_kafka_refuses_are_parked_and_replayed(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    settings = cli.environment(services, database, slot=slot_name(database))
    topic, missing = make_topic(services.bootstrap, f"{topic_prefix}known"), f"{topic_prefix}missing"

    def parked() -> dict[int, str]:
        listed = cli.run(tmp_path, settings, "outbox", "parked", "list", "--output", "json")
        assert listed.code == 0, listed.err
        return {row["seq"]: row["reason"] for row in json.loads(listed.out)}

    with cli.running(tmp_path, settings, "relay", "--grace-seconds", "0.5"):
        [big] = publish(database, topic, ("big", b"x" * 2_000_000))
        [long] = publish(database, topic, (LONG, b"y" * 2_000_000))
        [nowhere, behind] = publish(database, missing, ("a", b"1"), ("a", b"2"))
        [invalid] = publish(database, "no such/topic", ("a", b"3"))
        [endless] = publish(database, LONG, ("a", b"4"))
        publish(database, topic, ("b", b"flows"), (None, b"flows too"), (LONG + "z", b"long key"))
        flowed = {record.value for record in read(services.bootstrap, topic, 3)}
        assert flowed == {b"flows", b"flows too", b"long key"}
        eventually(lambda: not outbox_rows(database), "empty outbox")
        reasons = parked()
        assert reasons.pop(behind) in ("unknown_topic", "follows")
        assert reasons == {
            big: "oversized",
            long: "oversized",
            nowhere: "unknown_topic",
            invalid: "invalid_topic",
            endless: "invalid_topic",
        }
        with psycopg.connect(database) as connection:
            sizes = connection.execute("select length(record_value) from onceward.outbox_parked where seq = %s", (big,))
            assert sizes.fetchone() == (2_000_000,)
        make_topic(services.bootstrap, missing)
        assert cli.run(tmp_path, settings, "outbox", "parked", "replay", "--topic", missing).code == 0
        assert [record.value for record in read(services.bootstrap, missing, 2)] == [b"1", b"2"]
        cli.run(tmp_path, settings, "outbox", "parked", "replay", "987654321").check_refusal("No parked row fits.")
