"""What breaks readers, and what registries accept although values would be read wrongly, is found with its path."""

from __future__ import annotations

from typing import Any

import pytest

from onceward_schemas.compatibility import changes
from tests.support.avro_values import avro_command

UUID = {"type": "string", "logicalType": "uuid"}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def long(logical: str) -> dict[str, Any]:
    return {"type": "long", "logicalType": logical}


def enum(*symbols: str, **rest: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": [*symbols], **rest}


def fixed(size: int, **rest: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": "F", "size": size, **rest}


def inner(*fields: tuple[str, Any], **rest: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": n, "type": t} for n, t in fields], **rest}


REFUSED: list[tuple[Any, Any, str, str]] = [
    ("int", "string", "x", "changes from int to string"),
    ("long", "int", "x", "changes from long to int"),
    ("long", "double", "x", "changes from long to double"),
    ("int", "float", "x", "changes from int to float"),
    ("string", "bytes", "x", "changes from string to bytes"),
    (["null", "int"], "int", "x", "changes from null to int"),
    (["int", "string"], ["int", "null"], "x", "changes from string"),
    (decimal(9, 2), decimal(9, 3), "x", "decimal(9, 3)"),
    (decimal(9, 2), decimal(10, 2), "x", "decimal(10, 2)"),
    (["null", decimal(9, 2)], ["null", decimal(12, 2)], "x", "decimal(12, 2)"),
    (decimal(9, 2), "bytes", "x", "to bytes"),
    (long("timestamp-millis"), long("timestamp-micros"), "x", "timestamp-micros"),
    ("long", long("timestamp-millis"), "x", "timestamp-millis"),
    (long("timestamp-millis"), "long", "x", "to long"),
    ("string", UUID, "x", "to uuid"),
    (enum("A", "B"), enum("A"), "x", "no longer has B"),
    (enum("A"), enum("A", "B"), "x", "gains B"),
    (enum("A"), enum("A", "B", default="A"), "x", "gains B"),
    (enum("A"), enum("A", namespace="elsewhere"), "x", "was made.E and is now elsewhere.E"),
    (enum("A"), {**enum("A"), "name": "E2"}, "x", "is now made.E2"),
    (fixed(4), fixed(5), "x", "fixed(5)"),
    (fixed(16), fixed(16, logicalType="uuid"), "x", "uuid as fixed(16)"),
    (inner(("a", "int")), inner(("a", "int"), ("b", "int")), "x.b", "is new and has no default"),
    (inner(("a", "int")), inner(("a", ["null", "int"]), ("b", ["null", "int"])), "x.b", "no default"),
    (inner(("a", "int")), inner(("a", "string")), "x.a", "to string"),
    (inner(("a", decimal(4, 2))), inner(("a", decimal(5, 2))), "x.a", "decimal(5, 2)"),
    (["null", inner(("a", "int"))], ["null", inner(("a", "long"), ("b", "int"))], "x.b", "no default"),
    (
        {"type": "array", "items": inner(("a", "int"))},
        {"type": "array", "items": inner(("a", "string"))},
        "x[].a",
        "string",
    ),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, "x{}", "to string"),
    ({"type": "map", "values": "int"}, {"type": "array", "items": "int"}, "x", "map of int to array of int"),
]

ALLOWED: list[tuple[Any, Any]] = [
    ("int", "long"),
    ("int", ["null", "int"]),
    (["null", "int"], ["null", "int", "string"]),
    (["null", "int"], ["int", "null"]),
    ("float", "double"),
    (enum("A", "B", default="A"), enum("A", "B", "C", default="A")),
    (enum("A", "B", default="A"), enum("A", default="A")),
    (enum("A", default="A"), {**enum("A", default="A"), "name": "E2", "aliases": ["E"]}),
    (inner(("a", "int"), ("b", "int")), inner(("a", "int"))),
    (inner(("a", "int")), inner(("a", "int"), doc="A record.")),
    (decimal(9, 2), decimal(9, 2)),
]


def changed(old: Any, new: Any) -> tuple[Any, ...]:
    return changes(avro_command([{"name": "x", "type": old}]), avro_command([{"name": "x", "type": new}]))


@pytest.mark.parametrize(("old", "new", "path", "problem"), REFUSED)
def test_an_unsafe_change_is_found(old: Any, new: Any, path: str, problem: str) -> None:
    found = changed(old, new)
    assert [finding for finding in found if finding.path == path and problem in finding.problem], found
    assert all(finding.remedy for finding in found)


@pytest.mark.parametrize(("old", "new"), ALLOWED)
def test_a_safe_change_is_allowed(old: Any, new: Any) -> None:
    assert changed(old, new) == ()


def test_fields_may_come_with_a_default_and_go() -> None:
    one = avro_command([{"name": "a", "type": "int"}])
    two = avro_command([{"name": "a", "type": "int"}, {"name": "b", "type": "int", "default": 0}])
    assert changes(one, two) == ()
    assert changes(two, one) == ()


def test_a_rename_needs_an_alias() -> None:
    old = avro_command([{"name": "a", "type": "int"}])
    assert changes(old, avro_command([{"name": "b", "type": "int", "aliases": ["a"]}])) == ()
    (finding,) = changes(old, avro_command([{"name": "b", "type": "int"}]))
    assert (finding.path, finding.problem) == ("b", "is new and has no default")


def test_the_key_may_not_change_and_the_version_not_go_back() -> None:
    fields = [{"name": name, "type": "string"} for name in "ab"]
    old = avro_command(fields, key="a", version=2)
    assert [f.path for f in changes(old, avro_command(fields, key="b", version=2))] == ["onceward.key"]
    assert [f.path for f in changes(old, avro_command(fields, key="a", version=1))] == ["onceward.version"]
    assert changes(old, avro_command(fields, key="a", version=3)) == ()


def test_another_lane_is_refused_with_the_way_round() -> None:
    fields = [{"name": "a", "type": "string"}]
    moved = avro_command(fields)
    moved["onceward"] = moved["onceward"] | {"lane": "another.lane"}
    (finding,) = changes(avro_command(fields), moved)
    assert finding.path == "onceward.lane"
    assert "lose their order" in finding.problem
    assert "new command type" in finding.remedy
