"""The records of our outbox are what Debezium's Outbox Event Router makes of it with deploy/debezium/connector.json: key,
value, headers in order, partition. The expectations are the measured behaviour of Debezium 3.6, written out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onceward_outbox_relay.relay import RelayOptions
from onceward_schemas import headers
from tests.support.relay import PARTITIONS, make_topic, outbox_rows, read, running_relay, until
from tests.support.services import Services

ROOT = Path(__file__).parents[2]
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
RUN = "0197c0de-0000-7000-8000-0000000000aa"
PLAIN: dict[str, Any] = {
    "aggregatetype": "order",
    "aggregateid": "k",
    "type": "OrderPlaced",
    "payload": b'{"a":1}',
    "version": 1,
    "attempt": 1,
    "tenant": "t1",
    "run_id": RUN,
    "traceparent": TRACE,
    "context": '{"request_id":"r1"}',
}
# What differs from PLAIN in each row.
ROWS: dict[str, dict[str, Any]] = {
    "plain": {},
    "null columns": {"tenant": None, "run_id": None, "traceparent": None, "context": None},
    "empty strings": {"type": "", "tenant": "", "traceparent": "", "context": ""},
    "unicode": {"aggregateid": "żółć-日本-🚀", "type": "Été", "tenant": "Größe", "payload": "naïve 日本 🚀".encode()},
    "decomposed": {"aggregateid": "e\u0301", "tenant": "\u202e\u200b\ufeff"},
    "empty key": {"aggregateid": ""},
    "null key": {"aggregateid": None},
    "empty payload": {"payload": b""},
    "null payload": {"payload": None},
    "all bytes": {"payload": bytes(range(256))},
    "300 kB": {"payload": bytes(range(256)) * 1200},
    "int max": {"version": 2**31 - 1, "attempt": 2**31 - 1},
    "int min": {"version": -(2**31), "attempt": 0},
    "looks typed": {"tenant": "true", "traceparent": '"quoted"', "context": "null", "type": "123"},
    "looks like JSON": {"tenant": '{"a":[1,2]}', "traceparent": "1.50", "context": "2020-01-01"},
    "controls": {"tenant": "a\nb\tc\r", "traceparent": "back\\slash", "context": "\x01\x7f", "type": " padded "},
    "long header": {"tenant": "é" * 5000},
    "long key": {"aggregateid": "k" * 2000},
    "framed": {"payload": b"\0\0\0\0\7\2\4"},
}


def murmur2(data: bytes) -> int:
    """The hash of Kafka's Java client, written from its definition (MurmurHash2, seed 0x9747b28c)."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = h * m & mask ^ k
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def java_partition(key: str, partitions: int) -> int:
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def header_bytes(value: Any) -> bytes | None:
    return None if value is None else str(value).encode()


def identity(number: int) -> str:
    return f"0197c0de-0000-7000-8000-{number:012x}"


def write(dsn: str, topic: str) -> dict[str, dict[str, Any]]:
    """Insert the rows and what must not come out; returns the expected ones by id."""
    expected = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number, changes in enumerate(ROWS.values()):
            row = {"id": identity(number), "topic": topic, **PLAIN, **changes}
            insert = f"insert into onceward.outbox ({', '.join(row)}) values ({', '.join(['%s'] * len(row))})"
            connection.execute(insert, list(row.values()))
            expected[row["id"]] = row
        row = {"id": identity(900), "topic": topic, **PLAIN}
        insert = f"insert into onceward.outbox ({', '.join(row)}) values ({', '.join(['%s'] * len(row))})"
        with connection.transaction(force_rollback=True):
            connection.execute(insert, list(row.values()))
        with connection.transaction():
            with connection.transaction(force_rollback=True):
                connection.execute(insert, list(row.values()))
            connection.execute(insert, [identity(800), *list(row.values())[1:]])
            connection.execute("update onceward.outbox set tenant = 'changed' where id = %s", (identity(800),))
            connection.execute("delete from onceward.outbox where id = %s", (identity(800),))
        expected[identity(800)] = row | {"id": identity(800)}
        connection.execute("update onceward.outbox set tenant = 'changed' where id = %s", (identity(0),))
        connection.execute("alter table onceward.outbox add column extra text default 'e'")
        connection.execute(insert, [identity(801), *list(row.values())[1:]])
        expected[identity(801)] = row | {"id": identity(801)}
        connection.execute("alter table onceward.outbox drop column extra")
        connection.execute(insert, [identity(802), *list(row.values())[1:]])
        expected[identity(802)] = row | {"id": identity(802)}
    return expected


def test_the_hash_is_that_of_the_java_client() -> None:
    """Values from the tests of Kafka's own client."""
    assert murmur2(b"21") == -973932308 & 0xFFFFFFFF
    assert murmur2(b"foobar") == -790332482 & 0xFFFFFFFF
    assert murmur2(b"a-little-bit-long-string") == -985981536 & 0xFFFFFFFF


@pytest.mark.parametrize("mode", ["stream", "poll"])
def test_every_record_is_what_debezium_would_publish(
    services: Services, database: str, topic_prefix: str, mode: Any
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "golden")
    if mode == "poll":  # a poller sees rows as they are when it looks, so it must look at nothing that changes
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("create rule frozen as on update to onceward.outbox do instead nothing")
    with running_relay(database, services.bootstrap, RelayOptions(mode=mode)):
        expected = write(database, topic)
        if mode == "poll":
            del expected[identity(800)]  # inserted and deleted in one transaction: only the log shows it
        until(lambda: outbox_rows(database) == 0, 15, "the outbox is empty")
    records = read(services.bootstrap, topic, len(expected), 10)
    assert {record.id for record in records} == expected.keys()
    for record in records:
        row = expected[record.id]
        assert record.key == row["aggregateid"]
        assert record.value == row["payload"]
        assert list(record.headers) == list(headers.ALL)
        assert record.headers == {name: header_bytes(row[name]) for name in headers.ALL}
        if row["aggregateid"] is not None:
            assert record.partition == java_partition(row["aggregateid"], PARTITIONS)


def test_the_shipped_connector_places_our_headers_in_our_order() -> None:
    config = json.loads((ROOT / "deploy/debezium/connector.json").read_text())["config"]
    placed = config["transforms.outbox.table.fields.additional.placement"]
    assert placed == ",".join(f"{name}:header" for name in headers.PLACED)
    assert config["transforms.outbox.route.by.field"] == "topic"
    assert config["table.include.list"] == "onceward.outbox"
