"""Hypothesis strategies: values that fit an Avro type, and schemas of commands with every type."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from onceward_schemas.avro import Array, AvroType, Enum, Fixed, Map, Primitive, Record, Union, parse
from onceward_schemas.avsc import CommandFile, declared, lint
from onceward_schemas.codec import classes_beside
from onceward_schemas.command import Command
from onceward_schemas.generate import generated_module
from onceward_schemas.values import ClassOf

_numbers = count(1)
_zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-11))])
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def values(node: AvroType, class_of: ClassOf) -> st.SearchStrategy[Any]:
    """Python values that the type accepts."""
    match node:
        case Primitive(kind="bytes", logical="decimal", precision=int(precision), scale=scale):
            return _decimals(precision, scale)
        case Fixed(logical="decimal", precision=int(precision), scale=scale):
            return _decimals(precision, scale)
        case Fixed(logical="uuid"):
            return st.uuids()
        case Fixed(size=size):
            return st.binary(min_size=size, max_size=size)
        case Primitive(kind=kind, logical=logical):
            return _PRIMITIVES[kind, logical]
        case Enum(name=name):
            return st.sampled_from([*iter_members(class_of(name))])
        case Array(items=items):
            return st.lists(values(items, class_of), max_size=3).map(tuple)
        case Map(values=inner):
            return st.dictionaries(_TEXT, values(inner, class_of), max_size=3)
        case Union(branches=branches):
            return st.one_of([values(branch, class_of) for branch in branches])
        case Record(name=name, fields=fields):
            return st.builds(class_of(name), **{field.name: values(field.type, class_of) for field in fields})


def iter_members(enum: Any) -> Iterator[Any]:
    """The members of an enum that mypy knows only as a class."""
    return iter(enum)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    whole = st.integers(-(10**precision) + 1, 10**precision - 1)
    return whole.map(lambda number: Decimal(f"{number}E-{scale}"))


_PRIMITIVES: dict[tuple[str, str | None], st.SearchStrategy[Any]] = {
    ("null", None): st.none(),
    ("boolean", None): st.booleans(),
    ("int", None): st.integers(-(2**31), 2**31 - 1),
    ("long", None): st.integers(-(2**63), 2**63 - 1),
    ("float", None): st.floats(width=32, allow_nan=False),
    ("double", None): st.floats(allow_nan=False),
    ("bytes", None): st.binary(max_size=20),
    ("string", None): _TEXT,
    ("string", "uuid"): st.uuids(),
    ("int", "date"): st.dates(),
    ("int", "time-millis"): st.times().map(lambda t: t.replace(microsecond=t.microsecond // 1000 * 1000)),
    ("long", "time-micros"): st.times(),
    ("long", "timestamp-millis"): st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=_zones).map(
        lambda instant: instant.replace(microsecond=instant.microsecond // 1000 * 1000)
    ),
    ("long", "timestamp-micros"): st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=_zones),
}

_LEAVES: list[Any] = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "bytes",
    "string",
    {"type": "string", "logicalType": "uuid"},
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 7},
]
_ON_FIXED: list[dict[str, Any]] = [{}, {"logicalType": "uuid"}, {"logicalType": "decimal", "precision": 38, "scale": 3}]
_BRANCHES: list[list[Any]] = [
    ["string", {"type": "int", "logicalType": "date"}],
    ["boolean", "int", "double"],
    ["string", "bytes"],
    ["int", {"type": "map", "values": "int"}],
]


@st.composite
def types_of_fields(draw: st.DrawFn, depth: int = 3) -> Any:
    """The JSON of an Avro type."""
    kind = draw(
        st.sampled_from(["leaf", "leaf", "leaf", "array", "map", "nullable", "record", "enum", "fixed", "union"])
    )
    if kind == "leaf" or depth == 0:
        return draw(st.sampled_from(_LEAVES))
    if kind == "array":
        return {"type": "array", "items": draw(types_of_fields(depth - 1))}
    if kind == "map":
        return {"type": "map", "values": draw(types_of_fields(depth - 1))}
    name = f"T{next(_numbers)}"
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["NONE", "ONE", "TWO"], "default": "NONE"}
    if kind == "fixed":
        logical = draw(st.sampled_from(_ON_FIXED))
        return {"type": "fixed", "name": name, "size": 16, **logical}
    if kind == "record":
        inner = draw(st.lists(types_of_fields(depth - 1), min_size=1, max_size=3))
        return {"type": "record", "name": name, "fields": [{"name": f"f{n}", "type": t} for n, t in enumerate(inner)]}
    if kind == "union":
        record = {"type": "record", "name": name, "fields": [{"name": "x", "type": draw(types_of_fields(depth - 1))}]}
        enum = {"type": "enum", "name": f"{name}E", "symbols": ["A", "B"], "default": "A"}
        return ["null", *draw(st.sampled_from(_BRANCHES)), record, enum]
    inner_type = draw(types_of_fields(depth - 1).filter(lambda t: not isinstance(t, list)))
    return ["null", inner_type]


def avro_command(fields: list[Any], *, name: str = "Made", version: int = 1, key: str | None = None) -> dict[str, Any]:
    """The JSON of a command with these fields, or with fields f0, f1, … of these types."""
    whole = all(
        isinstance(field, dict) and "name" in field and field.get("type") not in ("record", "enum", "fixed")
        for field in fields
    )
    return {
        "type": "record",
        "name": name,
        "namespace": "made",
        "onceward": {"version": version, "lane": "made.lane", "key": key, "aggregate": "made"},
        "fields": fields if whole else [{"name": f"f{n}", "type": t} for n, t in enumerate(fields)],
    }


def command_file(avro: dict[str, Any]) -> CommandFile:
    """The schema as if read from a file."""
    record = parse(avro)
    assert isinstance(record, Record)
    schema = declared(avro)
    assert not [*lint(schema, record)]
    return CommandFile(path=Path("made.avsc"), schema=schema, record=record)


@contextmanager
def generated(*schemas: dict[str, Any]) -> Iterator[Any]:
    """The module generated from the schemas, imported under a name of its own."""
    module = types.ModuleType(f"generated_{next(_numbers)}")
    sys.modules[module.__name__] = module
    try:
        text = generated_module([command_file(avro) for avro in schemas], folder="made")
        exec(text, module.__dict__)  # noqa: S102
        yield module
    finally:
        del sys.modules[module.__name__]


def commands_of(command: type[Command]) -> st.SearchStrategy[Any]:
    """Instances of a generated command class."""
    record = parse(command.SCHEMA.avro)
    assert isinstance(record, Record)
    return values(record, classes_beside(command, record))


AWKWARD = avro_command(
    [
        {
            "name": "date",
            "type": {"type": "int", "logicalType": "date"},
            "default": 19_000,
            "doc": 'Say """hello""" \\n',
        },
        {"name": "datetime", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 1},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}, "default": 1001},
        {"name": "UUID", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "other", "type": {"type": "int", "logicalType": "date"}},
        {"name": "names", "type": {"type": "map", "values": "string"}, "default": {'qu"ote': "ü\\"}},
        {"name": "raw", "type": "bytes", "default": "\"'\\\n\u00ff"},
        {"name": "one", "type": {"type": "array", "items": "int"}, "default": [1]},
        {
            "name": "inner",
            "type": {
                "type": "record",
                "name": "Inner",
                "doc": 'Ends in a "quote"',
                "fields": [
                    {
                        "name": "kind",
                        "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"], "default": "A"},
                        "default": "B",
                    }
                ],
            },
            "default": {},
        },
    ]
)
"""A command whose names, defaults and texts are hard to write as Python."""
