"""Rows that Kafka refuses for good, kept in onceward.outbox_parked. Committed before they count as settled.

The first parked row of a topic and key blocks the key until somebody decides on it; the rows behind it follow it here, and
go to Kafka by themselves, in order, once it is replayed or discarded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import psycopg

from onceward_outbox_relay.layout import Headers
from onceward_runtime.sql import query

FOLLOWS: Final = "follows"
"""The reason of a row that is only behind another one."""

Key = tuple[str | None, bytes | None]
"""Topic and record key; rows without a key have no order and never follow."""


class Record(NamedTuple):
    """One record as it would be produced. `seq` is the row's, where the table has one."""

    seq: int | None
    topic: str | None
    key: bytes | None
    value: bytes | None
    headers: Headers


def size(record: Record) -> int:
    """What the record takes in a batch, on the safe side."""
    headers = sum(len(name) + len(value or b"") + 10 for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers + 100


class Parked(NamedTuple):
    record: Record
    reason: str
    error: str


class Released(NamedTuple):
    """What to do for one key: produce these records in order; whether more of the key stay parked."""

    records: list[Record]
    more: bool


def park(connection: psycopg.Connection[Any], rows: list[Parked]) -> None:
    """Write rows, those already there left as they are, in one transaction; durable on return."""
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute("set local synchronous_commit = on")
        cursor.executemany(
            query("onceward_outbox_relay", "park"),
            [
                (r.seq, _identity(r), reason, error[:2000], r.topic, r.key, r.value, json.dumps(_plain(r.headers)))
                for r, reason, error in rows
            ],
        )


def blocked_keys(connection: psycopg.Connection[Any]) -> set[Key]:
    """Every topic and key with parked rows."""
    rows = connection.execute(query("onceward_outbox_relay", "blocked_keys")).fetchall()
    return {(topic, key) for topic, key in rows}


def releasable_keys(connection: psycopg.Connection[Any]) -> list[Key]:
    """The topics and keys whose first parked row no longer blocks."""
    return [(topic, key) for topic, key in connection.execute(query("onceward_outbox_relay", "releasable")).fetchall()]


def released(connection: psycopg.Connection[Any], key: Key, limit: int = 1000) -> Released:
    """The records of a key up to the first one that still waits for a decision."""
    asked = {"topic": key[0], "key": key[1], "limit": limit + 1}
    rows = connection.execute(query("onceward_outbox_relay", "parked_of_key"), asked).fetchall()
    records: list[Record] = []
    for seq, reason, state, value, headers in rows:
        if len(records) == limit or (state == "parked" and reason != FOLLOWS):
            return Released(records, True)
        records.append(Record(seq, key[0], key[1], value, _headers(headers)))
    return Released(records, False)


def mark_replayed(connection: psycopg.Connection[Any], records: Iterable[Record]) -> None:
    """Kafka has these now."""
    connection.execute(query("onceward_outbox_relay", "mark_replayed"), ([r.seq for r in records],))


def park_again(connection: psycopg.Connection[Any], record: Record, reason: str, error: str) -> None:
    """A replay was refused: the row waits for another decision."""
    connection.execute(query("onceward_outbox_relay", "park_again"), (reason, error[:2000], record.seq))


def _identity(record: Record) -> str | None:
    value = next((value for name, value in record.headers if name == "id"), None)
    return value.decode(errors="replace") if value else None


def _plain(headers: Headers) -> list[list[Any]]:
    return [[name, _json_value(value)] for name, value in headers]


def _json_value(value: bytes | None) -> Any:
    if value is None:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return {"hex": value.hex()}
    return {"hex": value.hex()} if "\0" in text else text


def _headers(stored: list[list[Any]]) -> Headers:
    return [(name, _bytes_of(value)) for name, value in stored]


def _bytes_of(value: Any) -> bytes | None:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"])
    return None if value is None else str(value).encode()
