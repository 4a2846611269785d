"""The reader resolves what another version wrote: defaults of every type, aliases, unknown symbols, widened unions."""

from __future__ import annotations

import copy
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from onceward_schemas.codec import Codec
from onceward_schemas.errors import UndecodableError
from onceward_testing.registry import MemoryRegistry
from tests.support.avro_values import avro_command, generated


def exchanged(writer: dict[str, Any], reader: dict[str, Any], /, **values: Any) -> Any:
    """What a reader of one schema makes of a command that was written with the other."""
    with generated(writer) as old, generated(reader) as new:
        registry = MemoryRegistry()
        registry._schemas.append(writer)  # as if registered, whatever the rules say
        registry._subjects["made.Made"] = [1]
        payload = Codec(registry).encode(old.Made(**values))
        return Codec(registry, [new.Made]).decode(payload)


def field(name: str, type_: Any, **rest: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **rest}


PAIR = {"type": "record", "name": "Pair", "fields": [field("a", "int"), field("b", "bytes", default="\u00ff")]}
DEFAULTS: list[tuple[Any, Any, Any]] = [
    ("int", 7, 7),
    (["null", "string"], None, None),
    (["string", "null"], "x", "x"),
    ("bytes", "\u0000\u00ff", b"\x00\xff"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, "\u0001\u0000", Decimal("2.56")),
    ({"type": "string", "logicalType": "uuid"}, "0" * 8 + "-0000-0000-0000-" + "0" * 12, UUID(int=0)),
    ({"type": "int", "logicalType": "date"}, 1, date(1970, 1, 2)),
    ({"type": "int", "logicalType": "time-millis"}, 1000, time(0, 0, 1)),
    ({"type": "long", "logicalType": "timestamp-micros"}, 0, datetime(1970, 1, 1, tzinfo=UTC)),
    ({"type": "array", "items": "bytes"}, ["\u00ff"], (b"\xff",)),
    ({"type": "map", "values": {"type": "int", "logicalType": "date"}}, {"a": 0}, {"a": date(1970, 1, 1)}),
    ("double", 1, 1.0),
    ({"type": "fixed", "name": "F", "size": 2}, "\u0001\u00fe", b"\x01\xfe"),
]


@pytest.mark.parametrize(("type_", "default", "expected"), DEFAULTS)
def test_a_new_field_takes_its_default_with_the_right_type(type_: Any, default: Any, expected: Any) -> None:
    writer = avro_command([field("x", "int")])
    reader = avro_command([field("y", type_, default=default), field("x", "int")])
    for _ in range(2):
        command = exchanged(writer, reader, x=1)
        assert command.y == expected
        assert type(command.y) is type(expected)
    with generated(reader) as module:
        assert module.Made(x=1).y == expected, "the class has the same default"


def test_a_default_record_is_built_of_its_class() -> None:
    reader = avro_command([field("x", "int"), field("y", PAIR, default={"a": 3})])
    command = exchanged(avro_command([field("x", "int")]), reader, x=1)
    assert type(command.y).__name__ == "Pair"
    assert (command.y.a, command.y.b) == (3, b"\xff")


def test_a_default_is_not_shared_between_commands() -> None:
    writer = avro_command([field("x", "int")])
    reader = avro_command([field("x", "int"), field("y", {"type": "map", "values": "int"}, default={})])
    with generated(writer) as old, generated(reader) as new:
        registry = MemoryRegistry(old.Made)
        payload = Codec(registry).encode(old.Made(x=1))
        codec = Codec(registry, [new.Made])
        one: Any = codec.decode(payload)
        one.y["spoiled"] = 1
        other: Any = codec.decode(payload)
        assert other.y == {}


def test_a_removed_field_is_skipped() -> None:
    writer = avro_command([field("gone", {"type": "array", "items": PAIR}), field("x", "int")])
    with generated(writer) as module:
        pair = module.Pair
    assert exchanged(writer, avro_command([field("x", "int")]), x=5, gone=()).x == 5
    assert pair is not None


def test_a_field_renamed_with_an_alias_keeps_its_value() -> None:
    reader = avro_command([field("new", "string", aliases=["old"])])
    assert exchanged(avro_command([field("old", "string")]), reader, old="a").new == "a"


def test_an_unknown_symbol_becomes_the_default() -> None:
    def colour(*symbols: str) -> dict[str, Any]:
        return avro_command([field("c", {"type": "enum", "name": "C", "symbols": [*symbols], "default": "OTHER"})])

    writer, reader = colour("OTHER", "RED", "BLUE"), colour("OTHER", "RED")
    with generated(writer) as old, generated(reader) as new:
        registry = MemoryRegistry(old.Made)
        codec = Codec(registry, [new.Made])
        blue: Any = codec.decode(Codec(registry).encode(old.Made(c=old.C.BLUE)))
        red: Any = codec.decode(Codec(registry).encode(old.Made(c=old.C.RED)))
        assert (blue.c, red.c) == (new.C.OTHER, new.C.RED)


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("int", ["null", "int"], 3),
        ("string", ["null", "int", "string"], "a"),
        ("int", "long", 3),
        ("float", "double", 0.5),
        (["null", "string"], ["null", "string", "int"], None),
        (
            ["null", {"type": "int", "logicalType": "date"}],
            ["null", "string", {"type": "int", "logicalType": "date"}],
            date(2026, 1, 1),
        ),
    ],
)
def test_a_widened_type_reads_old_values(old: Any, new: Any, value: Any) -> None:
    command = exchanged(avro_command([field("x", old)]), avro_command([field("x", new)]), x=value)
    assert command.x == value


def test_a_record_made_optional_reads_old_values() -> None:
    nullable = avro_command([field("x", ["null", PAIR]), field("c", ["string", {"type": "array", "items": "Pair"}])])
    plain = avro_command([field("x", PAIR), field("c", {"type": "array", "items": "Pair"})])
    with generated(plain) as old, generated(nullable) as new:
        registry = MemoryRegistry(old.Made)
        pair = old.Pair(a=1, b=b"z")
        command: Any = Codec(registry, [new.Made]).decode(Codec(registry).encode(old.Made(x=pair, c=(pair,))))
        assert command == new.Made(x=new.Pair(a=1, b=b"z"), c=(new.Pair(a=1, b=b"z"),))


def test_fields_in_another_order_are_read_by_name() -> None:
    writer = avro_command([field("a", "string"), field("b", PAIR), field("c", "int")])
    reader = copy.deepcopy(writer)
    reader["fields"].reverse()
    reader["fields"][1]["type"]["fields"].reverse()
    with generated(writer) as old, generated(reader) as new:
        registry = MemoryRegistry(old.Made)
        command: Any = Codec(registry, [new.Made]).decode(
            Codec(registry).encode(old.Made(a="x", b=old.Pair(a=1, b=b"2"), c=3))
        )
        assert command == new.Made(a="x", b=new.Pair(a=1, b=b"2"), c=3)


def test_a_union_takes_a_subclass_for_the_type_it_is() -> None:
    class Instant(datetime):
        """As pendulum's or freezegun's."""

    avro = avro_command([field("x", ["null", "string", MICROS])])
    assert exchanged(avro, avro, x=Instant(2026, 1, 1, tzinfo=UTC)).x == datetime(2026, 1, 1, tzinfo=UTC)


MICROS, MILLIS = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("micros", "millis"))


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        (MILLIS, MICROS, datetime(2026, 1, 1, tzinfo=UTC)),
        ("long", MICROS, 5),
        ("string", "int", "a"),
        (["null", "int"], "int", None),
        ("long", "int", 5),
        ("bytes", "string", b"a"),
    ],
)
def test_what_would_be_read_wrongly_is_undecodable(old: Any, new: Any, value: Any) -> None:
    with pytest.raises(UndecodableError, match="x changes from") as caught:
        exchanged(avro_command([field("x", old)]), avro_command([field("x", new)]), x=value)
    assert caught.value.reason == "undecodable"
