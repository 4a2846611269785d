"""Records that nobody can run, on a lane that a worker consumes: unreadable payloads and headers, records without value, key
or id, numbers and sizes beyond reason.

Promised: each becomes a dead letter with a reason code and its original bytes, its partition moves on (the good record behind
it in the same key takes effect, and the offsets of both are committed), and the worker lives. What is only odd is run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, TopicPartition

from onceward_consumer.app import App
from onceward_consumer.context import Context
from onceward_consumer.failures import Reject, Retry
from onceward_consumer.policy import fixed
from onceward_consumer.worker import Worker
from tests.support.commands import Increment, Settle
from tests.support.consumers import Group, app_name, eventually, group_of
from tests.support.databases import fresh_database
from tests.support.raw_records import Pairs, RawProducer, heads
from tests.support.relay import running_relay
from tests.support.services import Services
from tests.support.topics import delete_topics

TYPE = "test.Increment"
SECONDS = 15.0


@dataclass
class Lane:
    """A lane, its relay and its worker."""

    group: Group
    worker: Worker
    name: str
    producer: RawProducer
    numbers: Iterator[int] = field(default_factory=count)

    def send(self, key: bytes | None, payload: bytes | None, headers: Pairs) -> tuple[int, int]:
        return self.producer.send(self.name, key, payload, headers)

    def good(self, counter: str = "a", note: str | None = None) -> tuple[bytes, int]:
        """A payload, and the number by which its effect is known."""
        amount = next(self.numbers)
        return self.group.codec.encode(Increment(counter=counter, amount=amount, note=note)), amount

    def effects(self, *amounts: int) -> list[int]:
        found = self.group.query("select amount from effect where amount = any(%s) order by seq", list(amounts))
        return [row[0] for row in found]

    def moves_on(self, key: bytes | None) -> None:
        """See that a good record behind the bad one takes effect, and that nothing before it is left uncommitted."""
        payload, amount = self.good()
        partition, offset = self.send(key, payload, heads(TYPE))
        eventually(lambda: self.effects(amount), "effect of the record behind it", SECONDS)
        eventually(lambda: self.committed(partition) > offset, "committed offset", SECONDS)
        assert self.worker.ready()

    def committed(self, partition: int) -> int:
        consumer = Consumer(self.group.settings.kafka(**{"group.id": self.group.app.name}))
        try:
            [found] = consumer.committed([TopicPartition(self.name, partition)], 10)
            return int(found.offset)
        finally:
            consumer.close()

    def dead(self, partition: int, offset: int) -> tuple[Any, ...]:
        """Reason, error, payload, key and id of the dead letter that a record became."""
        statement = (
            "select reason, error, payload, record_key, command_id from onceward.dead_letters"
            ' where topic = %s and partition = %s and "offset" = %s'
        )
        [row] = eventually(lambda: self.group.query(statement, self.name, partition, offset), "dead letter", SECONDS)
        return tuple(row)


@pytest.fixture(scope="module")
def lane(services: Services, migrated_template: str) -> Iterator[Lane]:
    prefix = app_name("bad")
    app = App(app_name(f"{prefix}."))
    name = f"{prefix}.counter"

    @app.handler(Increment, lane=name, retry=fixed("200ms", attempts=3))
    def increment(command: Increment, ctx: Context) -> None:
        if command.note == "fail once" and ctx.attempt < 2:
            raise Retry("not_yet")
        if command.note == "reject":
            raise Reject("never")
        ctx.connection.execute(
            "insert into effect (counter, amount) values (%s, %s)", (command.counter, command.amount)
        )

    @app.handler(Settle, lane=name)
    def settle(command: Settle, ctx: Context) -> None:
        raise AssertionError("no test sends a good one")

    with ExitStack() as opened:
        dsn = opened.enter_context(fresh_database(services.dsn, migrated_template))
        opened.callback(delete_topics, services.bootstrap, prefix)
        group = group_of(app, services, dsn, partitions=2)
        group.query("create table effect (seq bigint generated always as identity, counter text, amount int)")
        opened.enter_context(running_relay(dsn, services.bootstrap))
        worker = opened.enter_context(group.running())
        yield Lane(group, worker, name, RawProducer(services.bootstrap))


PAYLOADS: dict[str, tuple[Any, str]] = {
    "null": (lambda good: None, "empty_payload"),
    "no bytes": (lambda good: b"", "empty_payload"),
    "another magic byte": (lambda good: b"\x01" + good[1:], "bad_framing"),
    "shorter than a frame": (lambda good: good[:3], "bad_framing"),
    "JSON": (lambda good: b'{"counter": "a", "amount": 1}', "bad_framing"),
    "a frame alone": (lambda good: good[:5], "undecodable"),
    "cut short": (lambda good: good[:-1], "undecodable"),
    "one byte too many": (lambda good: good + b"\0", "trailing_bytes"),
    "garbage": (lambda good: good[:5] + b"\xff" * 40, "undecodable"),
    "a text that is not UTF-8": (lambda good: good[:5] + b"\x04\xff\xfe\x02\x00", "undecodable"),
    "a text of a claimed terabyte": (lambda good: good[:5] + b"\x80\x80\x80\x80\x80\x80\x01a", "undecodable"),
    "a text of negative length": (lambda good: good[:5] + b"\x03a\x02\x00", "undecodable"),
}


@pytest.mark.parametrize("what", PAYLOADS)
def test_an_undecodable_payload_is_a_dead_letter_with_its_bytes(lane: Lane, what: str) -> None:
    spoil, reason = PAYLOADS[what]
    payload = spoil(lane.good()[0])
    headers = heads(TYPE)
    at = lane.send(b"k", payload, headers)
    lane.moves_on(b"k")
    found, error, kept, key, identity = lane.dead(*at)
    assert (found, kept, key, str(identity)) == (reason, payload, b"k", headers[0][1])
    assert error


HEADERS: dict[str, tuple[dict[str, str | bytes | None], str]] = {
    "a type that is not UTF-8": ({"type": b"\xff\xfe"}, "bad_header"),
    "a context that is not UTF-8": ({"context": b"\xff{}"}, "bad_header"),
    "an id that is no UUID": ({"id": "seven"}, "bad_header"),
    "a run that is no UUID": ({"run_id": "seven"}, "bad_header"),
    "an attempt that is no number": ({"attempt": "many"}, "bad_header"),
    "attempt 0": ({"attempt": "0"}, "bad_header"),
    "a negative attempt": ({"attempt": "-5"}, "bad_header"),
    "an attempt beyond every integer": ({"attempt": "9" * 5000}, "bad_header"),
    "an attempt beyond the column": ({"attempt": "2147483647"}, "bad_header"),
    "a version beyond the column": ({"version": "99999999999"}, "bad_header"),
    "a negative version": ({"version": "-1"}, "bad_header"),
    "a type with a NUL": ({"type": "test.\0"}, "bad_header"),
    "a tenant with a NUL": ({"tenant": "ac\0me"}, "bad_header"),
    "a context that is no JSON": ({"context": "{not json"}, "bad_header"),
    "a context that is a list": ({"context": "[1, 2]"}, "bad_header"),
    "a context that nests without end": ({"context": '{"item": ' + "[" * 100_000}, "bad_header"),
    "a context with a number for a text": ({"context": '{"item": 7}'}, "bad_header"),
    "a context with an escaped NUL": ({"context": '{"item": "a\\u0000"}'}, "bad_header"),
    "a context with half a surrogate pair": ({"context": '{"item": "\\ud800"}'}, "bad_header"),
    "a context with an infinite number": ({"context": '{"sequence": 1e999}'}, "bad_header"),
    "a context with a date of no zone": ({"context": '{"deadline": "2026-01-01T00:00:00"}'}, "bad_header"),
    "an item too long to be indexed": ({"context": json.dumps({"item": "i" * 5000})}, "bad_header"),
    "a megabyte that is no JSON": ({"context": "x" * 980_000}, "bad_header"),
    "another type's name": ({"type": "test.Settle"}, "type_mismatch"),
    "no type": ({"type": None}, "missing_header"),
    "an empty type": ({"type": ""}, "missing_header"),
}


@pytest.mark.parametrize("what", HEADERS)
def test_unreadable_headers_make_a_dead_letter_with_its_bytes(lane: Lane, what: str) -> None:
    changed, reason = HEADERS[what]
    payload, amount = lane.good()
    headers = heads(TYPE, **changed)
    at = lane.send(b"k", payload, headers)
    lane.moves_on(b"k")
    found, error, kept, _, identity = lane.dead(*at)
    assert (found, kept) == (reason, payload)
    assert error
    if changed.keys() != {"id"}:
        assert str(identity) == headers[0][1]
    assert not lane.effects(amount)


def test_a_record_without_an_id_is_one_dead_letter_however_often_it_is_delivered(lane: Lane) -> None:
    payload, _ = lane.good()
    at = lane.send(b"k", payload, heads(TYPE, id=None))
    lane.moves_on(b"k")
    reason, _, kept, _, identity = lane.dead(*at)
    assert (reason, kept) == ("missing_header", payload)
    assert isinstance(identity, UUID)
    assert lane.group.query("select state from onceward.ledger where command_id = %s", identity) == [("dead",)]


def test_a_header_whose_name_is_not_utf_8_costs_its_record_only(lane: Lane) -> None:
    payload, amount = lane.good()
    before = lane.group.count("select count(*) from onceward.dead_letters")
    lane.producer.send_header_name(lane.name, b"k", payload, b"\xff\xfe")
    lane.moves_on(b"k")
    eventually(lambda: lane.group.count("select count(*) from onceward.dead_letters") == before + 1, "dead letter")
    [(reason, kept)] = lane.group.query(
        "select reason, payload from onceward.dead_letters order by dead_at desc limit 1"
    )
    assert (reason, kept) == ("bad_header", payload)
    assert not lane.effects(amount)


ODD: dict[str, Pairs] = {
    "headers that nobody knows": [*heads(TYPE), ("x-unknown", b"\xff\xfe"), ("", "nothing")],
    "a header twice, of which the last counts": [("type", "test.Nothing"), ("attempt", "x"), *heads(TYPE)],
    "a trace that is none": [*heads(TYPE), ("traceparent", "00-zz-zz-99"), ("context", '{"tracestate": ",,="}')],
    "null headers": [*heads(TYPE), ("tenant", None), ("run_id", None), ("context", None)],
    "a context with unknown fields": [*heads(TYPE), ("context", '{"later": {"a": [1]}}')],
    "a context of nearly a megabyte": [*heads(TYPE), ("context", json.dumps({"request_id": "r" * 950_000}))],
    "version 2000": heads(TYPE, version="2000"),
    "attempt 500 at first sight": heads(TYPE, attempt="500"),
    "an id that is not version 7": heads(TYPE, id="11111111-1111-4111-8111-111111111111"),
}


@pytest.mark.parametrize("what", ODD)
def test_what_is_only_odd_is_run(lane: Lane, what: str) -> None:
    payload, amount = lane.good()
    lane.send(b"odd", payload, ODD[what])
    lane.moves_on(b"odd")
    assert lane.effects(amount) == [amount]


KEYS: dict[str, bytes] = {
    "empty": b"",
    "not UTF-8": b"\xff\xfe",
    "with a NUL": b"a\0b",
    "10 kB long": bytes(range(33, 127)) * 106,
    "10 kB that do not compress": b"".join(str(n * 7919 % 104729).encode() for n in range(2000)),
    "200 kB long": b"".join(str(n * 7919 % 1299709).encode() for n in range(30_000)),
}


@pytest.mark.parametrize("what", KEYS)
def test_an_odd_key_keeps_its_order_while_its_head_is_retried(lane: Lane, what: str) -> None:
    key = KEYS[what]
    first, one = lane.good(note="fail once")
    second, two = lane.good()
    lane.send(key, first, heads(TYPE))
    lane.send(key, second, heads(TYPE))
    eventually(lambda: len(lane.effects(one, two)) == 2, "both effects", SECONDS)
    assert lane.effects(one, two) == [one, two]
    lane.moves_on(key)
    eventually(lambda: not lane.group.count("select count(*) from onceward.holds"), "end of the hold", SECONDS)


@pytest.mark.parametrize("what", KEYS)
def test_a_dead_letter_of_an_odd_key_keeps_the_key(lane: Lane, what: str) -> None:
    payload, _ = lane.good(note="reject")
    at = lane.send(KEYS[what], payload, heads(TYPE))
    reason, _, kept, key, _ = lane.dead(*at)
    assert (reason, kept, key) == ("never", payload, KEYS[what])
    lane.moves_on(KEYS[what])


def test_records_without_a_key_have_no_order_and_are_run(lane: Lane) -> None:
    first, one = lane.good(note="fail once")
    second, two = lane.good()
    lane.send(None, first, heads(TYPE))
    lane.send(None, second, heads(TYPE))
    eventually(lambda: set(lane.effects(one, two)) == {one, two}, "both effects", SECONDS)
    assert not lane.group.count("select count(*) from onceward.holds where key is null")
