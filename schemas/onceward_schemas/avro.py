"""Avro schemas as a small tree of values: names resolved, recursion and zero-size array items refused.

Both would let a few bytes crash or fill a process that decodes them, so no schema of ours or of others may have them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from onceward_schemas.errors import SchemaError

PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
MAX_DEPTH = 32
MAX_SIZE = 10_000
"""Types in a schema when every name is written out, so that no schema takes long to walk."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Primitive:
    kind: str
    logical: str | None = None
    precision: int | None = None
    scale: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    name: str
    size: int
    logical: str | None = None
    precision: int | None = None
    scale: int = 0
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Enum:
    name: str
    symbols: tuple[str, ...]
    default: str | None = None
    doc: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Array:
    items: AvroType


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    values: AvroType


@dataclass(frozen=True, slots=True, kw_only=True)
class Union:
    branches: tuple[AvroType, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    name: str
    type: AvroType
    has_default: bool = False
    default: Any = None
    """As the schema's JSON gives it; meaningful with `has_default` only."""
    doc: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    name: str
    fields: tuple[Field, ...]
    doc: str | None = None
    aliases: tuple[str, ...] = ()

    def field(self, name: str) -> Field | None:
        return next((field for field in self.fields if field.name == name), None)


AvroType: TypeAlias = Primitive | Fixed | Enum | Array | Map | Union | Record
NULL = Primitive(kind="null")


def parse(schema: Any) -> AvroType:
    """Read a schema's JSON form.

    Raises: SchemaError that names the place, for what Avro forbids, for recursion, and for arrays whose items take no
    bytes.

    >>> parse({"type": "record", "name": "n.A", "fields": [{"name": "x", "type": ["null", "int"]}]}).name
    'n.A'
    """
    return _Parser().read(schema, "", "", 0)


def short_name(full_name: str) -> str:
    """The part after the last dot.

    >>> short_name("hr.ApplyPackage")
    'ApplyPackage'
    """
    return full_name.rpartition(".")[2]


def described(node: AvroType) -> str:
    """The type in the words of an error message.

    >>> described(Primitive(kind="long", logical="timestamp-micros"))
    'timestamp-micros'
    """
    match node:
        case Primitive(kind=kind, logical="decimal") if node.precision is not None:
            return f"decimal({node.precision}, {node.scale}) as {kind}"
        case Primitive(kind=kind, logical=logical):
            return logical or kind
        case Fixed(size=size, logical=logical):
            return f"{logical} as fixed({size})" if logical else f"fixed({size})"
        case Array(items=items):
            return f"array of {described(items)}"
        case Map(values=values):
            return f"map of {described(values)}"
        case Union(branches=branches):
            return " or ".join(described(branch) for branch in branches)
        case Enum(name=name):
            return f"enum {name}"
        case Record(name=name):
            return f"record {name}"


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType | None] = {}
        self._sizes: dict[str, int] = {}

    def read(self, schema: Any, namespace: str, at: str, depth: int) -> AvroType:
        if depth > MAX_DEPTH:
            raise _error(at, f"is nested more than {MAX_DEPTH} levels deep", "Flatten the record.")
        if isinstance(schema, str):
            return self._reference(schema, namespace, at)
        if isinstance(schema, list):
            return self._union(schema, namespace, at, depth)
        if not isinstance(schema, Mapping) or "type" not in schema:
            raise _error(at, "is not an Avro type", 'Write a type name, or an object with "type".')
        kind = schema["type"]
        if isinstance(kind, (list, Mapping)):
            return self.read(kind, namespace, at, depth + 1)
        if kind == "array":
            items = self.read(schema.get("items"), namespace, f"{at}[]", depth + 1)
            if minimum_size(items) == 0:
                raise _error(
                    at,
                    "is an array whose items take no bytes",
                    "Give the items a field; a few bytes could claim millions.",
                )
            return Array(items=items)
        if kind == "map":
            return Map(values=self.read(schema.get("values"), namespace, f"{at}{{}}", depth + 1))
        if kind in ("record", "error", "enum", "fixed"):
            return self._definition(schema, kind, namespace, at, depth)
        if kind in PRIMITIVES:
            return Primitive(kind=kind, **_logical(schema))
        return self._reference(kind, namespace, at)

    def _reference(self, name: Any, namespace: str, at: str) -> AvroType:
        if name in PRIMITIVES:
            return Primitive(kind=name)
        full = name if not namespace or "." in str(name) else f"{namespace}.{name}"
        if full not in self._named:
            full = str(name)
        known = self._named.get(full)
        if known is None and full in self._named:
            raise _error(at, f"contains {name} within itself", "Pass a list of records, or a reference by id.")
        if known is None:
            raise _error(
                at, f"has the unknown type {str(name)[:80]!r}", "Define the type in this file before it is used."
            )
        return known

    def _union(self, schema: list[Any], namespace: str, at: str, depth: int) -> AvroType:
        branches = tuple(self.read(branch, namespace, at, depth + 1) for branch in schema)
        if not branches or any(isinstance(branch, Union) for branch in branches):
            raise _error(at, "is an empty or nested union", "List the types in one union.")
        kinds = [getattr(b, "name", None) or getattr(b, "kind", type(b).__name__) for b in branches]
        if len(set(kinds)) != len(kinds):
            raise _error(at, "is a union that holds one type twice", "Keep one of them, or wrap one in a record.")
        return Union(branches=branches)

    def _definition(self, schema: Mapping[str, Any], kind: str, namespace: str, at: str, depth: int) -> AvroType:
        name = schema.get("name")
        space = schema.get("namespace", namespace) or ""
        full = name if isinstance(name, str) and "." in name else f"{space}.{name}".lstrip(".")
        if not isinstance(name, str) or not _NAME.match(full):
            raise _error(at, f"has the name {str(name)[:80]!r}", "Use letters, digits and underscores.")
        if full in self._named:
            raise _error(at, f"defines {full} a second time", "Define it once, then refer to it by name.")
        self._named[full] = None
        space = full.rpartition(".")[0]
        aliases = tuple(a if "." in a or not space else f"{space}.{a}" for a in _strings(schema, "aliases", at))
        doc = schema.get("doc") if isinstance(schema.get("doc"), str) else None
        node: AvroType
        if kind == "fixed":
            size = schema.get("size")
            if not _is_count(size):
                raise _error(at, "is a fixed type without a size", 'Add "size", a number of bytes.')
            node = Fixed(name=full, size=int(str(size)), aliases=aliases, **_logical(schema))
        elif kind == "enum":
            node = _enum(schema, full, aliases, doc, at)
        else:
            node = Record(name=full, fields=self._fields(schema, space, at, depth), doc=doc, aliases=aliases)
        self._named[full] = node
        self._sizes[full] = 1 + sum(self._size(field.type) for field in node.fields) if isinstance(node, Record) else 1
        if self._sizes[full] > MAX_SIZE:
            raise _error(at, f"holds more than {MAX_SIZE:,} types", "Split the record.")
        return node

    def _size(self, node: AvroType) -> int:
        match node:
            case Array(items=inner) | Map(values=inner):
                return 1 + self._size(inner)
            case Union(branches=branches):
                return 1 + sum(map(self._size, branches))
            case Record(name=name):
                return self._sizes[name]
            case _:
                return 1

    def _fields(self, schema: Mapping[str, Any], namespace: str, at: str, depth: int) -> tuple[Field, ...]:
        fields = schema.get("fields")
        if not isinstance(fields, list):
            raise _error(at, 'is a record without "fields"', "Add the list, empty if need be.")
        found: dict[str, Field] = {}
        for position, raw in enumerate(fields):
            name = raw.get("name") if isinstance(raw, Mapping) else None
            where = f"{at}.{name}".lstrip(".") if isinstance(name, str) else f"{at}.fields[{position}]".lstrip(".")
            if not isinstance(raw, Mapping) or not isinstance(name, str) or "." in name or not _NAME.match(name):
                raise _error(where, "has no usable name", "Use letters, digits and underscores.")
            if "type" not in raw:
                raise _error(where, "has no type", 'Add "type".')
            if name in found:
                raise _error(where, "is there twice", "Rename one of them.")
            found[name] = Field(
                name=name,
                type=self.read(raw["type"], namespace, where, depth + 1),
                has_default="default" in raw,
                default=raw.get("default"),
                doc=raw.get("doc") if isinstance(raw.get("doc"), str) else None,
                aliases=_strings(raw, "aliases", where),
            )
        return tuple(found.values())


def minimum_size(node: AvroType) -> int:
    """The least number of bytes that a value takes: 0, or 1 for all else."""
    match node:
        case Primitive(kind=kind):
            return int(kind != "null")
        case Fixed(size=size):
            return int(size > 0)
        case Record(fields=fields):
            return int(any(minimum_size(field.type) for field in fields))
        case _:
            return 1


def _enum(schema: Mapping[str, Any], name: str, aliases: tuple[str, ...], doc: str | None, at: str) -> Enum:
    symbols = _strings(schema, "symbols", at)
    if not symbols or len(set(symbols)) != len(symbols) or not all(_NAME.match(s) and "." not in s for s in symbols):
        raise _error(at, "is an enum without usable symbols", "List each symbol once: letters, digits, underscores.")
    default = schema.get("default")
    if default is not None and default not in symbols:
        raise _error(at, f"has the default {str(default)[:80]!r}, which is none of its symbols", "Name one of them.")
    return Enum(name=name, symbols=symbols, default=default, doc=doc, aliases=aliases)


def _logical(schema: Mapping[str, Any]) -> dict[str, Any]:
    logical = schema.get("logicalType")
    if not isinstance(logical, str):
        return {}
    if logical != "decimal":
        return {"logical": logical}
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not _is_count(precision) or not _is_count(scale):
        return {"logical": logical}
    return {"logical": logical, "precision": precision, "scale": scale}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _strings(schema: Mapping[str, Any], name: str, at: str) -> tuple[str, ...]:
    value = schema.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _error(at, f'has "{name}" that is not a list of strings', "Correct it.")
    return tuple(value)


def _error(at: str, problem: str, remedy: str) -> SchemaError:
    return SchemaError(f"{at.strip('.') or 'The schema'} {problem}.", remedy=remedy)
