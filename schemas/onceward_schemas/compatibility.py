"""What a schema change breaks: Avro's resolution rules, and what they allow although values would be read wrongly.

Registries accept the second kind (measured: changes of decimal scale, of timestamp unit, of any logical type), so this
is checked before registering and again before a consumer reads with another version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onceward_schemas.avro import Array, AvroType, Enum, Field, Fixed, Map, Primitive, Record, Union, described, parse

_PROMOTIONS = frozenset({("int", "long"), ("int", "double"), ("float", "double")})
"""Avro's promotions that keep every value; long to double, int to float and string to bytes do not."""

_DECIDES_ORDER = {
    "lane": "Keep the lane, or make a new command type for the new one and handle both until the old lane is empty.",
    "key": "Keep the key, or make a new command type.",
}
"""Properties of which a change lets a new command overtake an old one of its aggregate, each with the way round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One reason to refuse a schema, at the path of a field."""

    path: str
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path} {self.problem}. {self.remedy}"


def breaks(*, writer: AvroType, reader: AvroType, path: str = "") -> Iterator[Finding]:
    """Why values written with `writer` cannot be read, or not rightly, as `reader`."""
    where = path or getattr(reader, "name", "the value")
    match writer, reader:
        case Union(branches=branches), _:
            for branch in branches:
                yield from breaks(writer=branch, reader=reader, path=path)
        case _, Union(branches=branches):
            yield from _as_branch(writer, branches, where)
        case Record(), Record():
            yield from _renamed(writer, reader, where)
            for field in reader.fields:
                yield from _field_breaks(writer, field, f"{path}.{field.name}".lstrip("."))
        case Enum(), Enum():
            yield from _renamed(writer, reader, where)
            gone = sorted(set(writer.symbols) - set(reader.symbols))
            if gone and reader.default is None:
                yield Finding(
                    path=where,
                    problem=f"no longer has {', '.join(gone)}",
                    remedy="Keep the symbols, or give the enum a default.",
                )
        case Array(items=old), Array(items=new):
            yield from breaks(writer=old, reader=new, path=f"{path}[]")
        case Map(values=old), Map(values=new):
            yield from breaks(writer=old, reader=new, path=f"{path}{{}}")
        case Fixed(), Fixed():
            yield from _renamed(writer, reader, where)
            if (writer.size, writer.logical, writer.scale) != (reader.size, reader.logical, reader.scale):
                yield _changed(writer, reader, where)
        case Primitive(), Primitive():
            same = (writer.kind, writer.logical, writer.scale) == (reader.kind, reader.logical, reader.scale)
            grown = (writer.kind, reader.kind) in _PROMOTIONS and not (writer.logical or reader.logical)
            if not same and not grown:
                yield _changed(writer, reader, where)
        case _:
            yield _changed(writer, reader, where)


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Why the command schema `new` may not follow `old` under the same name; empty where it may.

    Beside what breaks reading, this holds what would surprise consumers that are not updated yet.
    """
    before, after = parse(old), parse(new)
    found = [*breaks(writer=before, reader=after), *_unsafe(before, after, "")]
    for name, remedy in _DECIDES_ORDER.items():
        before_it, after_it = (_property(schema, name) for schema in (old, new))
        if before_it != after_it:
            problem = (
                f"changes from {before_it} to {after_it}, so old and new commands of one aggregate lose their order"
            )
            found.append(Finding(path=f"onceward.{name}", problem=problem, remedy=remedy))
    old_version, new_version = (_property(schema, "version") for schema in (old, new))
    if isinstance(old_version, int) and isinstance(new_version, int) and new_version < old_version:
        found.append(
            Finding(
                path="onceward.version", problem=f"goes back from {old_version} to {new_version}", remedy="Count up."
            )
        )
    return tuple(dict.fromkeys(found))


def same_contract(one: Any, other: Any) -> bool:
    """Whether two schemas differ in documentation and aliases at most.

    >>> same_contract({"type": "int", "doc": "a"}, {"doc": "b", "type": "int"})
    True
    """
    return bool(_bare(one) == _bare(other))


def _bare(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return {key: _bare(value) for key, value in schema.items() if key not in ("doc", "aliases")}
    return [_bare(item) for item in schema] if isinstance(schema, list) else schema


def _property(schema: Mapping[str, Any], name: str) -> Any:
    own = schema.get("onceward")
    return own.get(name) if isinstance(own, Mapping) else None


def _unsafe(old: AvroType, new: AvroType, path: str) -> Iterator[Finding]:
    match old, new:
        case Enum(), Enum():
            added = sorted(set(new.symbols) - set(old.symbols))
            if added and old.default is None:
                yield Finding(
                    path=path or new.name,
                    problem=f"gains {', '.join(added)}, which consumers of the old schema cannot read",
                    remedy="Give the enum a default, deploy the consumers, then add the symbol.",
                )
        case (Primitive() | Fixed()) as before, (Primitive() | Fixed()) as after:
            if before.logical == after.logical == "decimal" and before.precision != after.precision:
                yield _changed(old, new, path)
        case Array(items=inner), Array(items=now):
            yield from _unsafe(inner, now, f"{path}[]")
        case Map(values=inner), Map(values=now):
            yield from _unsafe(inner, now, f"{path}{{}}")
        case Record(), Record():
            for field in new.fields:
                match_ = _counterpart(old, field)
                if match_ is not None:
                    yield from _unsafe(match_.type, field.type, f"{path}.{field.name}".lstrip("."))
        case Union(), _:
            for branch in old.branches:
                yield from _unsafe(branch, new, path)
        case _, Union():
            for branch in new.branches:
                if getattr(branch, "name", None) == getattr(old, "name", None):
                    yield from _unsafe(old, branch, path)


def _as_branch(writer: AvroType, branches: tuple[AvroType, ...], where: str) -> Iterator[Finding]:
    tried = [tuple(breaks(writer=writer, reader=branch, path=where)) for branch in branches]
    if all(tried):
        alike = [
            found
            for found, branch in zip(tried, branches, strict=True)
            if getattr(branch, "name", "") == getattr(writer, "name", None)
        ]
        yield from alike[0] if alike else (_changed(writer, Union(branches=branches), where),)


def _field_breaks(writer: Record, field: Field, path: str) -> Iterator[Finding]:
    old = _counterpart(writer, field)
    if old is not None:
        yield from breaks(writer=old.type, reader=field.type, path=path)
    elif not field.has_default:
        yield Finding(path=path, problem="is new and has no default", remedy="Give it a default.")


def _counterpart(record: Record, field: Field) -> Field | None:
    names = (field.name, *field.aliases)
    return next((found for name in names if (found := record.field(name)) is not None), None)


def _renamed(writer: Record | Enum | Fixed, reader: Record | Enum | Fixed, where: str) -> Iterator[Finding]:
    if writer.name != reader.name and writer.name not in reader.aliases:
        yield Finding(
            path=where,
            problem=f"was {writer.name} and is now {reader.name}",
            remedy="Keep name and namespace, or add the old full name to its aliases.",
        )


def _changed(writer: AvroType, reader: AvroType, where: str) -> Finding:
    return Finding(
        path=where,
        problem=f"changes from {described(writer)} to {described(reader)}",
        remedy="Add a field with a default and keep the old one.",
    )
