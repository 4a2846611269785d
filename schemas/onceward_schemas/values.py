"""Between the values of a command's fields and the plain ones that Avro encodes: strict on the way out, exact both ways.

Whatever `to_plain` accepts, `from_plain` gives back equal. Logical types are converted here and not by fastavro, which
takes naive datetimes for local time, booleans for numbers, and decimals beyond their precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, make_dataclass
from decimal import Decimal
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias
from uuid import UUID

from onceward_schemas.avro import NULL, Array, AvroType, Enum, Fixed, Map, Primitive, Record, Union
from onceward_schemas.errors import SchemaError
from onceward_schemas.leaves import (
    LOGICAL_FROM_PLAIN,
    LOGICAL_TO_PLAIN,
    PRIMITIVE_TO_PLAIN,
    TYPES,
    Convert,
    MismatchError,
    decimal_from_plain,
    decimal_to_plain,
    fixed_to_plain,
    uuid_bytes,
)

ClassOf: TypeAlias = Callable[[str], type[Any]]
"""From the full name of a record or enum to its Python class."""


def to_plain(node: AvroType, class_of: ClassOf) -> Convert:
    """The function that checks one value and returns what fastavro writes without logical types.

    The function raises MismatchError.
    """
    match node:
        case Primitive(kind="bytes", logical="decimal", precision=int(precision), scale=scale):
            return decimal_to_plain(precision, scale, None)
        case Fixed(logical="decimal", precision=int(precision), scale=scale, size=size):
            return decimal_to_plain(precision, scale, size)
        case Fixed(logical="uuid", size=16):
            return uuid_bytes
        case Fixed(size=size):
            return fixed_to_plain(size)
        case Primitive():
            return LOGICAL_TO_PLAIN.get((node.kind, node.logical)) or PRIMITIVE_TO_PLAIN[node.kind]
        case Enum():
            return _enum_to_plain(class_of(node.name))
        case Array(items=items):
            return _array_to_plain(to_plain(items, class_of))
        case Map(values=values):
            return _map_to_plain(to_plain(values, class_of))
        case Record():
            return _record_to_plain(node, class_of)
        case Union(branches=branches):
            return _union_to_plain(branches, class_of)


def from_plain(node: AvroType, class_of: ClassOf) -> Convert | None:
    """The reverse of `to_plain`; None where the plain value is the value.

    The function raises ValueError, OverflowError or TypeError for what no writer of ours could have written.
    """
    match node:
        case Primitive(kind="bytes", logical="decimal", precision=int(precision), scale=scale):
            return decimal_from_plain(precision, scale)
        case Fixed(logical="decimal", precision=int(precision), scale=scale):
            return decimal_from_plain(precision, scale)
        case Fixed(logical="uuid", size=16):
            return lambda value: UUID(bytes=value)
        case Fixed():
            return None
        case Primitive():
            return LOGICAL_FROM_PLAIN.get((node.kind, node.logical))
        case Enum():
            return _members(class_of(node.name)).__getitem__
        case Array(items=items):
            item = from_plain(items, class_of)
            return tuple if item is None else lambda value: tuple(map(item, value))
        case Map(values=values):
            each = from_plain(values, class_of)
            return dict if each is None else lambda value: {key: each(inner) for key, inner in value.items()}
        case Record():
            return record_from_plain(node, class_of)
        case Union(branches=branches):
            return _union_from_plain(branches, class_of)


def python_type(node: AvroType, class_of: ClassOf) -> type[Any]:
    """The class that tells this branch of a union from the others."""
    match node:
        case Primitive(kind="bytes", logical="decimal") | Fixed(logical="decimal"):
            return Decimal
        case Fixed(logical="uuid"):
            return UUID
        case Fixed():
            return bytes
        case Primitive():
            return TYPES.get((node.kind, node.logical)) or TYPES[node.kind, None]
        case Enum(name=name) | Record(name=name):
            return class_of(name)
        case Array():
            return tuple
        case Map():
            return dict
        case Union():
            raise SchemaError("A union stands within a union.", remedy="List the types in one union.")


def _enum_to_plain(wanted: type[Any]) -> Convert:
    expected = f"a member of {wanted.__name__}"

    def convert(value: Any) -> str:
        if type(value) is not wanted:
            raise MismatchError(expected, value)
        return str(value.value)

    return convert


def _members(wanted: type[Any]) -> dict[str, Any]:
    return {str(member.value): member for member in wanted}


def _array_to_plain(item: Convert) -> Convert:
    def convert(value: Any) -> list[Any]:
        if not isinstance(value, (tuple, list)):
            raise MismatchError("a tuple", value)
        try:
            return [item(inner) for inner in value]
        except MismatchError:
            for position, inner in enumerate(value):
                _at(f"[{position}]", item, inner)
            raise

    return convert


def _map_to_plain(each: Convert) -> Convert:
    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise MismatchError("a dict", value)
        for key in value:
            if not isinstance(key, str):
                raise MismatchError("a dict whose keys are str", key)
        try:
            return {str.__str__(key): each(inner) for key, inner in value.items()}
        except MismatchError:
            for key, inner in value.items():
                _at(f"{{{key:.40}}}", each, inner)
            raise

    return convert


def _record_to_plain(node: Record, class_of: ClassOf) -> Convert:
    wanted = class_of(node.name)
    names = tuple(field.name for field in node.fields)
    _check_fields(wanted, names)
    converts = tuple(to_plain(field.type, class_of) for field in node.fields)
    get: Callable[[Any], tuple[Any, ...]]
    if len(names) == 1:
        only = attrgetter(*names)
        get = lambda value: (only(value),)
    else:
        get = attrgetter(*names) if names else lambda value: ()

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not wanted:
            raise MismatchError(wanted.__name__, value)
        try:
            return {n: c(v) for n, c, v in zip(names, converts, get(value), strict=True)}
        except MismatchError:
            for name, inner, part in zip(names, converts, get(value), strict=True):
                _at(name, inner, part)
            raise

    return convert


def _at(step: str, convert: Convert, value: Any) -> None:
    try:
        convert(value)
    except MismatchError as error:
        raise error.within(step) from None


def record_from_plain(node: Record, class_of: ClassOf) -> Convert:
    """As `from_plain`, for a record.

    Raises: SchemaError where the class has other fields.
    """
    wanted = class_of(node.name)
    names = tuple(field.name for field in node.fields)
    _check_fields(wanted, names)
    row_of: Convert = itemgetter(*names) if len(names) > 1 else lambda values: tuple(values[name] for name in names)
    found = [(place, from_plain(field.type, class_of)) for place, field in enumerate(node.fields)]
    converts = tuple((place, convert) for place, convert in found if convert is not None)
    twin = _twin(wanted, names)

    def build(values: dict[str, Any]) -> Any:
        row = [*row_of(values)]
        for place, convert in converts:
            row[place] = convert(row[place])
        if twin is None:
            return wanted(**dict(zip(names, row, strict=True)))
        instance = twin(*row)
        instance.__class__ = wanted
        return instance

    return build


def _twin(wanted: type[Any], names: tuple[str, ...]) -> type[Any] | None:
    """A mutable class of the same layout: filling one and making it the frozen class costs a third of `__init__`.

    None for classes that it does not work for, and those with a `__post_init__` of their own.
    """
    bases = tuple(base for base in wanted.__bases__ if base is not object)
    try:
        twin = make_dataclass(wanted.__name__, names, bases=bases, slots=True, eq=False, repr=False)
        twin(*names).__class__ = wanted
    except TypeError:
        return None
    return None if hasattr(wanted, "__post_init__") else twin


def _check_fields(wanted: type[Any], names: tuple[str, ...]) -> None:
    if not is_dataclass(wanted) or {field.name for field in fields(wanted)} != set(names):
        raise SchemaError(
            f"The class {wanted.__qualname__} has not the fields of its schema.",
            remedy="Run `onceward schemas generate FOLDER`.",
        )


def _union_to_plain(branches: tuple[AvroType, ...], class_of: ClassOf) -> Convert:
    """Choose by the value's class; fastavro is told the branch, so it does not search for one."""
    chosen: dict[type[Any], tuple[str, Convert]] = {}
    for branch in branches:
        chosen[python_type(branch, class_of)] = (_branch_name(branch), to_plain(branch, class_of))
    if list in chosen or tuple in chosen:
        chosen[list] = chosen[tuple]
    expected = " or ".join(sorted("None" if t is type(None) else t.__name__ for t in chosen if t is not list))

    def convert(value: Any) -> tuple[str, Any]:
        found = chosen.get(type(value))
        if found is None:
            for wanted, candidate in chosen.items():
                if isinstance(value, wanted):
                    found = candidate
                    break
            else:
                raise MismatchError(expected, value)
        name, inner = found
        return name, inner(value)

    return convert


def _branch_name(branch: AvroType) -> str:
    match branch:
        case Primitive(kind=kind):
            return kind
        case Array():
            return "array"
        case Map():
            return "map"
        case Fixed(name=name) | Enum(name=name) | Record(name=name):
            return name
        case Union():
            raise SchemaError("A union stands within a union.", remedy="List the types in one union.")


def _union_from_plain(branches: tuple[AvroType, ...], class_of: ClassOf) -> Convert | None:
    """fastavro gives a named type as (name, value) where the writer's schema had the union, and bare where it had not."""
    rest = [branch for branch in branches if branch != NULL]
    if len(rest) == 1:
        only = from_plain(rest[0], class_of)
        if isinstance(rest[0], (Fixed, Enum, Record)):
            return _unnamed(only or (lambda value: value))
        return only and (lambda value: None if value is None else only(value))
    named = {b.name: from_plain(b, class_of) for b in rest if isinstance(b, (Fixed, Enum, Record))}
    bare = {_PLAIN[_branch_name(b)]: from_plain(b, class_of) for b in rest if not isinstance(b, (Fixed, Enum, Record))}

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is tuple:
            name, value = value
            inner = named[name]
        else:
            inner = bare[type(value)]
        return value if inner is None else inner(value)

    return convert


def _unnamed(inner: Convert) -> Convert:
    def convert(value: Any) -> Any:
        if value is None:
            return None
        return inner(value[1] if type(value) is tuple else value)

    return convert


_PLAIN: dict[str, type[Any]] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
    "array": list,
    "map": dict,
}
"""What fastavro returns for a branch that has no name."""
