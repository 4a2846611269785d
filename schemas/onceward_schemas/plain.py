"""The form of a schema that fastavro works with: full names, no logical types, defaults as the values they stand for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import fastavro

from onceward_schemas.avro import Array, AvroType, Enum, Field, Fixed, Map, Primitive, Record, Union

_WHOLE = {"int": 2**31, "long": 2**63}


def plain_schema(node: AvroType) -> Any:
    """A schema parsed by fastavro, for writing plain values and for reading them without a reader's schema."""
    return fastavro.parse_schema(_json(node, {}))


def reader_schema(node: AvroType) -> Any:
    """The same, with defaults. fastavro returns a default as it stands there, so it must be what decoding would give."""
    made: dict[str, Any] = {}
    schema = fastavro.parse_schema(_json(node, made))
    named = {**schema["__named_schemas"], schema["name"]: schema} if isinstance(schema, dict) else {}
    for name, node_of_name in made.items():
        if isinstance(node_of_name, Record):
            for parsed, field in zip(named[name]["fields"], node_of_name.fields, strict=True):
                if field.has_default:
                    parsed["default"] = default_value(field.type, field.default)
    return schema


def has_many_branches(node: AvroType) -> bool:
    """Whether there is a union of several types beside null, which needs fastavro to name the branch."""
    match node:
        case Array(items=inner) | Map(values=inner):
            return has_many_branches(inner)
        case Record(fields=fields):
            return any(has_many_branches(field.type) for field in fields)
        case Union(branches=branches):
            rest = [b for b in branches if not (isinstance(b, Primitive) and b.kind == "null")]
            return len(rest) > 1 or any(map(has_many_branches, rest))
        case _:
            return False


def default_value(node: AvroType, default: Any) -> Any:
    """The plain value that a default in a schema's JSON stands for.

    Raises: ValueError that says what the default should have been.

    >>> default_value(Primitive(kind="bytes"), "\\u00ff")
    b'\\xff'
    """
    match node:
        case Union(branches=branches):
            return default_value(branches[0], default)
        case Array(items=items) if isinstance(default, list):
            return [default_value(items, item) for item in default]
        case Map(values=values) if isinstance(default, Mapping):
            return {key: default_value(values, value) for key, value in default.items()}
        case Record(fields=fields) if isinstance(default, Mapping):
            return {field.name: _of_field(field, default) for field in fields}
        case Enum(symbols=symbols) if default in symbols:
            return default
        case Fixed(size=size) if isinstance(default, str) and len(default) == size and _is_latin(default):
            return default.encode("latin-1")
        case Primitive(kind=kind) if _fits(kind, default):
            return default.encode("latin-1") if kind == "bytes" else float(default) if kind in _REAL else default
    raise ValueError(_EXPECTED.get(getattr(node, "kind", type(node).__name__), "a value of its type"))


_REAL = frozenset({"float", "double"})
_EXPECTED = {
    "null": "null",
    "boolean": "true or false",
    "int": "a whole number of 32 bits",
    "long": "a whole number of 64 bits",
    "float": "a number",
    "double": "a number",
    "bytes": "a string of characters up to \\u00ff",
    "string": "a string",
    "Array": "a list of its item type",
    "Map": "an object of its value type",
    "Record": "an object with every field that has no default",
    "Enum": "one of its symbols",
    "Fixed": "a string of exactly its size, of characters up to \\u00ff",
}


def _of_field(field: Field, default: Mapping[str, Any]) -> Any:
    if field.name in default:
        return default_value(field.type, default[field.name])
    if field.has_default:
        return default_value(field.type, field.default)
    raise ValueError(f"an object with the field {field.name!r}")


def _fits(kind: str, default: Any) -> bool:
    if kind == "null":
        return default is None
    if kind == "boolean":
        return isinstance(default, bool)
    if kind in _WHOLE:
        return isinstance(default, int) and not isinstance(default, bool) and -_WHOLE[kind] <= default < _WHOLE[kind]
    if kind in _REAL:
        return isinstance(default, (int, float)) and not isinstance(default, bool) and math.isfinite(default)
    return isinstance(default, str) and (kind == "string" or _is_latin(default))


def _is_latin(text: str) -> bool:
    return all(ord(character) < 256 for character in text)


def _json(node: AvroType, made: dict[str, AvroType]) -> Any:
    match node:
        case Primitive(kind=kind):
            return kind
        case Array(items=items):
            return {"type": "array", "items": _json(items, made)}
        case Map(values=values):
            return {"type": "map", "values": _json(values, made)}
        case Union(branches=branches):
            return [_json(branch, made) for branch in branches]
    if node.name in made:
        return node.name
    made[node.name] = node
    head = {"name": node.name, "aliases": list(node.aliases)} if node.aliases else {"name": node.name}
    match node:
        case Fixed(size=size):
            return {"type": "fixed", "size": size, **head}
        case Enum(symbols=symbols, default=default):
            enum = {"type": "enum", "symbols": list(symbols), **head}
            return enum if default is None else {**enum, "default": default}
        case Record(fields=fields):
            return {"type": "record", **head, "fields": [_field_json(field, made) for field in fields]}


def _field_json(field: Field, made: dict[str, AvroType]) -> dict[str, Any]:
    schema = {"name": field.name, "type": _json(field.type, made)}
    return {**schema, "aliases": list(field.aliases)} if field.aliases else schema
