"""Bytes that are no command end in an UndecodableError with a reason: no other exception, no hang, no memory taken."""

from __future__ import annotations

import json
import random
import resource
import time
from typing import Any

import pytest

from onceward_schemas.codec import Codec
from onceward_schemas.errors import UndecodableError
from onceward_testing.registry import MemoryRegistry
from tests.support.charges import charge
from tests.support.commands import Charge, Increment, Payer, Settle

REGISTRY = MemoryRegistry(Charge, Increment, Settle)
CODEC = Codec(REGISTRY, [Charge, Increment])
ENCODED = CODEC.encode(charge(payer=Payer(name="Ada"), labels={"a": "b"}, reference=("x", "y")))
REASONS = {"empty_payload", "bad_framing", "schema_missing", "undecodable", "unknown_type", "trailing_bytes"}


def reason(payload: bytes | None, codec: Codec = CODEC) -> str:
    with pytest.raises(UndecodableError) as caught:
        codec.decode(payload)
    assert caught.value.remedy
    return caught.value.reason


def outcome(payload: bytes) -> str:
    try:
        return type(CODEC.decode(payload)).__name__
    except UndecodableError as error:
        return error.reason


class OtherRegistry(MemoryRegistry):
    """Holds a schema that somebody else registered, unchecked."""

    def __init__(self, avro: Any) -> None:
        super().__init__()
        self._schemas.append(avro)


def test_each_kind_of_bad_payload_has_its_reason() -> None:
    assert reason(None) == "empty_payload"
    assert reason(b"") == "empty_payload"
    assert reason(b"\0\0\0\0") == "bad_framing"
    assert reason(b'{"amount": 1}') == "bad_framing"
    assert reason(b"\0\0\0\x27\x0f\0") == "schema_missing"
    assert reason(b"\0\0\0\0\x03\x02") == "unknown_type"
    assert reason(ENCODED[:-1]) == "undecodable"
    assert reason(ENCODED + b"\0") == "trailing_bytes"


def test_a_payload_cut_anywhere_is_refused() -> None:
    for length in range(len(ENCODED)):
        assert reason(ENCODED[:length]) in REASONS


def test_twenty_thousand_random_payloads_are_refused_or_decoded() -> None:
    dice = random.Random(20260329)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for number in range(20_000):
        if number % 2:
            payload = bytes(5) + dice.randbytes(dice.randrange(60))
            payload = b"\0\0\0\0" + bytes([dice.randrange(5)]) + payload[5:]
        else:
            changed = bytearray(ENCODED)
            for _ in range(dice.randrange(1, 5)):
                changed[dice.randrange(4, len(changed))] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
            payload = bytes(changed)
        found = outcome(payload)
        assert found in REASONS or found in ("Charge", "Increment")
        refused += found in REASONS
    assert refused > 10_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.parametrize(
    "length",
    [b"\xfe\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x0f", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 12],
)
def test_a_length_beyond_the_payload_takes_no_memory(length: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert reason(b"\0\0\0\0\x02" + length + b"abc") == "undecodable"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_a_schema_whose_array_items_take_no_bytes_is_never_decoded() -> None:
    avro = {
        "type": "record",
        "name": "test.Increment",
        "fields": [{"name": "x", "type": {"type": "array", "items": "null"}}],
    }
    started = time.monotonic()
    codec = Codec(OtherRegistry(avro), [Increment])
    assert reason(b"\0\0\0\0\x01" + b"\x80\xe1\xeb\x17" + b"\0", codec) == "undecodable"
    with pytest.raises(UndecodableError):
        codec.inspect(b"\0\0\0\0\x01" + b"\x80\xe1\xeb\x17" + b"\0")
    assert time.monotonic() - started < 1


def test_a_recursive_schema_is_never_decoded() -> None:
    avro = {
        "type": "record",
        "name": "test.Increment",
        "fields": [{"name": "next", "type": ["null", "test.Increment"]}],
    }
    codec = Codec(OtherRegistry(avro), [Increment])
    assert reason(b"\0\0\0\0\x01" + b"\x02" * 100_000 + b"\0", codec) == "undecodable"


@pytest.mark.parametrize("avro", ["string", {"type": "map", "values": "int"}, {"type": "record"}, None, 7, ["null"]])
def test_a_registered_schema_that_is_no_record_is_undecodable(avro: Any) -> None:
    assert reason(b"\0\0\0\0\x01\0", Codec(OtherRegistry(avro), [Increment])) == "undecodable"


def test_values_that_no_writer_of_ours_made_are_undecodable() -> None:
    def with_types(written: dict[str, str | Any]) -> Codec:
        avro = json.loads(json.dumps(Charge.SCHEMA.avro))
        for field in avro["fields"]:
            if field["name"] in written:
                field["type"] = written[field["name"]]
        return Codec(OtherRegistry(avro), [Charge])

    # 13 digits where 12 are allowed; a day beyond the year 9999: the schemas are equal, only the values are not.
    start = ENCODED.index(b"\x04\x07\xc6")
    assert reason(ENCODED[:start] + b"\x0c\x7f\xff\xff\xff\xff\xff" + ENCODED[start + 3 :]) == "undecodable"
    # Read as what it was not written as: refused as a whole.
    assert reason(ENCODED[:4] + b"\x01" + ENCODED[5:], with_types({"booked_at": "long"})) == "undecodable"
    assert (
        reason(
            ENCODED[:4] + b"\x01" + ENCODED[5:],
            with_types({"amount": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}}),
        )
        == "undecodable"
    )


def test_a_schema_that_names_itself_out_into_millions_is_never_walked() -> None:
    inner: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "null"}]}
    for level in range(1, 25):
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": f"R{level - 1}"}]
        inner = {"type": "record", "name": f"R{level}", "fields": fields}
    avro = {
        "type": "record",
        "name": "test.Increment",
        "fields": [{"name": "x", "type": {"type": "array", "items": inner}}],
    }
    started = time.monotonic()
    assert reason(b"\0\0\0\0\x01\0", Codec(OtherRegistry(avro), [Increment])) == "undecodable"
    assert time.monotonic() - started < 1
