"""A file that cannot become a command is refused with its path, the field and a remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onceward_schemas.avsc import load_file, load_folder
from onceward_schemas.errors import SchemaError

OWN = {"version": 1, "lane": "made.lane", "key": "id", "aggregate": "made", "owner": "us"}


def record(*fields: dict[str, Any], **changed: Any) -> dict[str, Any]:
    whole = {
        "type": "record",
        "name": "Made",
        "namespace": "made",
        "onceward": OWN,
        "fields": [{"name": "id", "type": "string"}, *fields],
    }
    return {name: value for name, value in (whole | changed).items() if value is not None}


def field(type_: Any, name: str = "x", **rest: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **rest}


def own(**changed: Any) -> dict[str, Any]:
    return record(onceward={name: value for name, value in (OWN | changed).items() if value != "ABSENT"})


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}
DEEP: Any = "int"
for _ in range(40):
    DEEP = {"type": "array", "items": DEEP}

REFUSED: list[tuple[str, Any, str]] = [
    ("no onceward property", record(onceward=None), 'Add "onceward"'),
    ("not a record", {"type": "enum", "name": "E", "symbols": ["A"]}, "Begin with"),
    ("not an object", [1], "Begin with"),
    ("onceward.lane is missing", own(lane="ABSENT"), "Write, for instance"),
    ("onceward.key is missing", own(key="ABSENT"), "Write, for instance"),
    ("onceward.version is not", own(version="1"), "for instance"),
    ("onceward.version is not", own(version=True), "for instance"),
    ("onceward.version is less", own(version=-1), "Count from 1"),
    ("onceward.topic is not known", own(topic="a"), "Use version, lane"),
    ("onceward.lane is not a topic name", own(lane="a b"), "letters, digits"),
    ("onceward.key names nothing", own(key="nothing"), "Name one of id"),
    ("x cannot be a key", own(key="x") | {"fields": [field("double")]}, "string, int, long or uuid"),
    ("x cannot be a key", own(key="x") | {"fields": [field(["null", "string"])]}, "not null"),
    ("x cannot be a key", own(key="x") | {"fields": [field({"type": "int", "logicalType": "date"})]}, "uuid"),
    ("Made has no namespace", record(namespace=None), "namespace"),
    ("has the name 'Not good'", record(name="Not good"), "letters, digits"),
    ("fields[1] has no usable name", record({"type": "int"}), "letters, digits"),
    ("x has no type", record({"name": "x"}), 'Add "type"'),
    ("x is there twice", record(field("int"), field("int")), "Rename"),
    ("x has the unknown type 'integer'", record(field("integer")), "Define the type"),
    (
        "x.next contains Node within itself",
        record(field({"type": "record", "name": "Node", "fields": [field(["null", "Node"], "next")]})),
        "by id",
    ),
    ("x[] contains made.Made within itself", record(field({"type": "array", "items": "made.Made"})), "by id"),
    (
        "x is an array whose items take no bytes",
        record(field({"type": "array", "items": "null"})),
        "Give the items a field",
    ),
    (
        "x is an array whose items take no bytes",
        record(field({"type": "array", "items": {"type": "record", "name": "Empty", "fields": [field("null", "n")]}})),
        "a field",
    ),
    (
        "x is an array whose items take no bytes",
        record(field({"type": "array", "items": {"type": "fixed", "name": "Nothing", "size": 0}})),
        "a field",
    ),
    ("is nested more than 32 levels", record(field(DEEP)), "Flatten"),
    ("x is an empty or nested union", record(field([])), "one union"),
    ("x is a union that holds one type twice", record(field(["int", "int"])), "Keep one"),
    ("x is a union of two types that are both read as an int", record(field(["int", "long"])), "Keep one"),
    (
        "x is a union of two types that are both read as bytes",
        record(field(["bytes", {"type": "fixed", "name": "F", "size": 2}])),
        "Keep one",
    ),
    ("made.E is an enum without a default", record(field({**ENUM, "default": None})), 'Add "default"'),
    ("x has the default 'C'", record(field({**ENUM, "default": "C"})), "Name one"),
    ("x is an enum without usable symbols", record(field({**ENUM, "symbols": ["A", "A"]})), "once"),
    ("made.E.title cannot become a member", record(field({**ENUM, "symbols": ["A", "title"]})), "capitals"),
    ("made.E.None cannot become a member", record(field({**ENUM, "symbols": ["A", "None"]})), "capitals"),
    ("x defines made.E a second time", record(field(ENUM, "first"), field(ENUM)), "refer to it by name"),
    ("made.str cannot become a class", record(field({**ENUM, "name": "str"})), "another name"),
    ("class cannot become an attribute", record(field("int", "class")), "Python's words"),
    ("_x cannot become an attribute", record(field("int", "_x")), "leading underscore"),
    (
        "x.int cannot become an attribute",
        record(field({"type": "record", "name": "R", "fields": [field("int", "int")]})),
        "Python's words",
    ),
    (
        "x is a decimal with scale 3 over precision 2",
        record(field({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3})),
        "larger",
    ),
    (
        "x is a decimal without a usable precision",
        record(field({"type": "bytes", "logicalType": "decimal"})),
        "1 to 1000",
    ),
    (
        "x is a decimal without a usable precision",
        record(field({"type": "bytes", "logicalType": "decimal", "precision": "9"})),
        "JSON number",
    ),
    (
        "x is a decimal without a usable precision",
        record(field({"type": "fixed", "name": "F", "size": 4, "logicalType": "decimal", "precision": 10})),
        "1 to 9",
    ),
    (
        "x has the logical type decimal on string",
        record(field({"type": "string", "logicalType": "decimal", "precision": 4})),
        "decimal on bytes",
    ),
    (
        "x has the logical type timestamp-milis",
        record(field({"type": "long", "logicalType": "timestamp-milis"})),
        "timestamp-millis on long",
    ),
    (
        "x[] has the logical type date on long",
        record(field({"type": "array", "items": {"type": "long", "logicalType": "date"}})),
        "date on int",
    ),
    (
        "x is a timestamp without a time zone",
        record(field({"type": "long", "logicalType": "local-timestamp-micros"})),
        "timestamp-micros",
    ),
    (
        "x has a default that does not fit the first type",
        record(field(["null", "int"], default=0)),
        "first in the union",
    ),
    ("x has a default that does not fit its type", record(field("int", default="0")), "whole number of 32 bits"),
    ("x has a default that does not fit its type", record(field("int", default=2**31)), "32 bits"),
    ("x has a default that does not fit its type", record(field("boolean", default=0)), "true or false"),
    ("x has a default that does not fit its type", record(field("bytes", default="\u0100")), "characters up to"),
    (
        "x has a default that does not fit its type",
        record(field({"type": "int", "logicalType": "date"}, default=10**9)),
        "",
    ),
    (
        "x has a default that does not fit its type",
        record(field({"type": "record", "name": "R", "fields": [field("int", "a")]}, default={})),
        "field 'a'",
    ),
    (
        "x has a default that does not fit its type",
        record(field({"type": "array", "items": "int"}, default=[None])),
        "32 bits",
    ),
]


@pytest.mark.parametrize(("problem", "schema", "remedy"), REFUSED)
def test_a_bad_file_is_refused(tmp_path: Path, problem: str, schema: Any, remedy: str) -> None:
    path = tmp_path / "made.avsc"
    path.write_text(json.dumps(schema))
    with pytest.raises(SchemaError) as caught:
        load_file(path)
    assert problem in caught.value.message or problem.startswith(("no onceward", "not a"))
    assert str(path) in caught.value.message
    assert caught.value.remedy
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{\n "type": record}', "line 2, column 10: not JSON"),
        (b"", "line 1, column 1: not JSON"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_what_is_not_json_is_refused_by_line(tmp_path: Path, text: bytes, problem: str) -> None:
    path = tmp_path / "made.avsc"
    path.write_bytes(text)
    with pytest.raises(SchemaError, match=problem):
        load_file(path)


def test_every_problem_of_every_file_is_named_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text(json.dumps(own(lane="a b", key="nothing")))
    (tmp_path / "b.avsc").write_text("{")
    with pytest.raises(SchemaError) as caught:
        load_folder(tmp_path)
    for part in ("a.avsc: onceward.lane", "a.avsc: onceward.key", "b.avsc, line 1"):
        assert part in caught.value.message


def test_an_empty_folder_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(SchemaError, match="holds no"):
            load_folder(folder)


def test_two_files_may_share_a_type_only_if_it_is_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text(json.dumps(record(field(ENUM), name="First")))
    (tmp_path / "b.avsc").write_text(json.dumps(record(field(ENUM), name="Second")))
    assert [file.schema.name for file in load_folder(tmp_path)] == ["made.First", "made.Second"]
    (tmp_path / "b.avsc").write_text(json.dumps(record(field({**ENUM, "symbols": ["A"]}), name="Second")))
    with pytest.raises(SchemaError, match=r"b\.avsc: made\.E is also defined in .*a\.avsc"):
        load_folder(tmp_path)
    (tmp_path / "b.avsc").write_text(json.dumps(record(field({**ENUM, "namespace": "else"}), name="Second")))
    with pytest.raises(SchemaError, match="also defined"):
        load_folder(tmp_path)


def test_two_files_cannot_define_one_command(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(record()))
    with pytest.raises(SchemaError, match=r"made\.Made is also defined"):
        load_folder(tmp_path)
