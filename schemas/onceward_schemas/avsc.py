"""Reading .avsc files: each holds one command, a record with an `onceward` property beside its fields.

    "onceward": {"version": 1, "lane": "hr.notify", "key": "employee_id", "aggregate": "employee", "owner": "hr-team"}

`key` names the field whose value orders the command (null where order does not matter); `owner` may be left out.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceward_schemas.avro import Array, AvroType, Enum, Field, Fixed, Map, Primitive, Record, Union, parse, short_name
from onceward_schemas.command import CommandSchema
from onceward_schemas.compatibility import Finding
from onceward_schemas.errors import SchemaError, TopicNameError
from onceward_schemas.leaves import LOGICAL
from onceward_schemas.plain import default_value
from onceward_schemas.topics import checked
from onceward_schemas.values import from_plain

_PROPERTIES = {"version": int, "lane": str, "key": str, "aggregate": str, "owner": str}
_EXAMPLE = '"onceward": {"version": 1, "lane": "hr.notify", "key": "employee_id", "aggregate": "employee"}'
_KEYS = frozenset({("string", None), ("int", None), ("long", None), ("string", "uuid")})
_TAKEN = frozenset(
    [
        "bool",
        "bytes",
        "dict",
        "float",
        "int",
        "str",
        "tuple",
        "Any",
        "ClassVar",
        "Command",
        "CommandSchema",
        "Mapping",
        "SCHEMA",
        "StrEnum",
        "field",
    ]
)
_TAKEN_CLASSES = _TAKEN | frozenset(["UTC", "UUID", "Decimal", "date", "datetime", "time", "command_schema"])


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandFile:
    """One .avsc file that passed every check."""

    path: Path
    schema: CommandSchema
    record: Record


def load_folder(folder: Path) -> tuple[CommandFile, ...]:
    """Every .avsc file in the folder and below, ordered by the name of the command.

    Raises: SchemaError that names every file and field that cannot be used.
    """
    paths = sorted(folder.rglob("*.avsc")) if folder.is_dir() else []
    if not paths:
        raise SchemaError(f"{folder} holds no .avsc files.", remedy="Name the folder with the command schemas.")
    files, errors = [], []
    for path in paths:
        try:
            files.append(load_file(path))
        except SchemaError as error:
            errors.append(error)
    _raise_all(errors)
    files.sort(key=lambda file: file.schema.name)
    _check_names(files)
    return tuple(files)


def _check_names(files: list[CommandFile]) -> None:
    """Refuse two files that would give two classes of one name."""
    seen: dict[str, tuple[str, AvroType, Path]] = {}
    for file in files:
        for name, node in named_types(file.record).items():
            full, known, where = seen.setdefault(short_name(name), (name, node, file.path))
            if (full, known) != (name, node) or (node is file.record and where != file.path):
                raise SchemaError(
                    f"{file.path}: {name} is also defined in {where}, and not in the same way.",
                    remedy="Rename one of them; a name becomes one class of the generated module.",
                )


def load_file(path: Path) -> CommandFile:
    """One command from its file.

    Raises: SchemaError naming the file and the field.
    """
    try:
        avro = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path} cannot be read ({type(error).__name__}).", remedy="Check the file.") from error
    except json.JSONDecodeError as error:
        raise SchemaError(
            f"{path}, line {error.lineno}, column {error.colno}: not JSON ({error.msg}).", remedy="Correct it there."
        ) from error
    except RecursionError as error:
        raise SchemaError(f"{path} is nested too deeply.", remedy="Flatten the record.") from error
    try:
        schema = declared(avro)
        record = parse(avro)
    except SchemaError as error:
        raise SchemaError(f"{path}: {error.message}", remedy=error.remedy) from None
    assert isinstance(record, Record)
    _raise_all(
        [SchemaError(f"{path}: {found.path} {found.problem}.", remedy=found.remedy) for found in lint(schema, record)]
    )
    return CommandFile(path=path, schema=schema, record=record)


def _raise_all(errors: list[SchemaError]) -> None:
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SchemaError("\n".join(map(str, errors)))


def command_schema(text: str) -> CommandSchema:
    """The schema that a generated class carries, from its JSON text."""
    return declared(json.loads(text))


def declared(avro: Any) -> CommandSchema:
    """What the `onceward` property of a record says.

    Raises: SchemaError where it is missing or malformed.
    """
    if not isinstance(avro, Mapping) or avro.get("type") != "record":
        raise SchemaError("The file does not hold an Avro record.", remedy='Begin with {"type": "record", "name": …}.')
    own = avro.get("onceward")
    if not isinstance(own, Mapping):
        raise SchemaError('The record has no "onceward" property.', remedy=f"Add {_EXAMPLE}.")
    unknown = sorted(set(own) - set(_PROPERTIES))
    if unknown:
        raise SchemaError(f"onceward.{unknown[0]} is not known.", remedy=f"Use {', '.join(_PROPERTIES)}.")
    for name, wanted in _PROPERTIES.items():
        if name not in own and name != "owner":
            raise SchemaError(f"onceward.{name} is missing.", remedy=f"Write, for instance, {_EXAMPLE}.")
        value = own.get(name)
        empty = value is None and name in ("key", "owner")
        if not empty and (not isinstance(value, wanted) or isinstance(value, bool) or not value):
            raise SchemaError(
                f"onceward.{name} is not a usable {wanted.__name__}.", remedy=f"Write, for instance, {_EXAMPLE}."
            )
    name, space = str(avro.get("name")), avro.get("namespace")
    return CommandSchema(
        name=name if "." in name or not space else f"{space}.{name}",
        version=own["version"],
        lane=own["lane"],
        key=own["key"],
        aggregate=own["aggregate"],
        avro=dict(avro),
        owner=own.get("owner"),
    )


def lint(schema: CommandSchema, record: Record) -> Iterator[Finding]:
    """What Avro allows and a command may not have, because it could not be typed, encoded strictly or changed later."""
    if schema.version < 1:
        yield Finding(path="onceward.version", problem="is less than 1", remedy="Count from 1.")
    try:
        checked(schema.lane)
    except TopicNameError as error:
        yield Finding(path="onceward.lane", problem="is not a topic name", remedy=error.remedy or "")
    if "." not in schema.name:
        yield Finding(
            path=schema.name, problem="has no namespace", remedy='Add "namespace", for instance the team or service.'
        )
    if schema.key is not None:
        yield from _key(schema.key, record)
    for name, node in named_types(record).items():
        yield from _named(name, node)
    yield from _lint_record(record, "")


def named_types(node: AvroType) -> dict[str, Record | Enum | Fixed]:
    """The records, enums and fixed types in a schema by full name, each after those it contains."""
    found: dict[str, Record | Enum | Fixed] = {}

    def visit(inner: AvroType) -> None:
        match inner:
            case Array(items=part) | Map(values=part):
                visit(part)
            case Union(branches=branches):
                for branch in branches:
                    visit(branch)
            case Record(fields=fields):
                for field in fields:
                    visit(field.type)
        if isinstance(inner, (Record, Enum, Fixed)):
            found.setdefault(inner.name, inner)

    visit(node)
    return found


def _key(key: str, record: Record) -> Iterator[Finding]:
    field = record.field(key)
    if field is None:
        yield Finding(
            path="onceward.key",
            problem=f"names {key}, which the record does not have",
            remedy=f"Name one of {', '.join(f.name for f in record.fields) or 'its fields'}, or null where order does not matter.",
        )
    elif not isinstance(field.type, Primitive) or (field.type.kind, field.type.logical) not in _KEYS:
        yield Finding(
            path=key, problem="cannot be a key by its type", remedy="Use string, int, long or uuid, and not null."
        )


def _named(name: str, node: Record | Enum | Fixed) -> Iterator[Finding]:
    short = short_name(name)
    if isinstance(node, Fixed):
        return
    if keyword.iskeyword(short) or short in _TAKEN_CLASSES or short.startswith("_"):
        yield Finding(path=name, problem="cannot become a class of that name", remedy="Choose another name.")
    if isinstance(node, Enum):
        if node.default is None:
            yield Finding(
                path=name,
                problem="is an enum without a default, so that no symbol could ever be added",
                remedy='Add "default", the symbol that stands for unknown ones.',
            )
        for symbol in node.symbols:
            if (
                keyword.iskeyword(symbol)
                or symbol.startswith("_")
                or hasattr(str, symbol)
                or symbol in ("name", "value", "mro")
            ):
                yield Finding(
                    path=f"{name}.{symbol}", problem="cannot become a member of an enum", remedy="Write it in capitals."
                )


def _lint_record(record: Record, path: str) -> Iterator[Finding]:
    for field in record.fields:
        where = f"{path}.{field.name}".lstrip(".")
        if keyword.iskeyword(field.name) or field.name in _TAKEN or field.name.startswith("_"):
            yield Finding(
                path=where,
                problem="cannot become an attribute",
                remedy="Avoid Python's words and a leading underscore.",
            )
        yield from _lint_type(field.type, where)
        if field.has_default:
            yield from _lint_default(field, where)


def _lint_type(node: AvroType, where: str) -> Iterator[Finding]:
    match node:
        case Primitive() | Fixed():
            yield from _lint_logical(node, where)
        case Array(items=items):
            yield from _lint_type(items, f"{where}[]")
        case Map(values=values):
            yield from _lint_type(values, f"{where}{{}}")
        case Record():
            yield from _lint_record(node, where)
        case Union(branches=branches):
            for branch in branches:
                yield from _lint_type(branch, where)
            kinds = [_python_kind(branch) for branch in branches]
            twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
            if twice:
                yield Finding(
                    path=where,
                    problem=f"is a union of two types that are both read as {twice[0]}",
                    remedy="Keep one of them.",
                )


def _lint_logical(node: Primitive | Fixed, where: str) -> Iterator[Finding]:
    kind = node.kind if isinstance(node, Primitive) else "fixed"
    if node.logical is None:
        return
    if node.logical.startswith("local-timestamp"):
        yield Finding(
            path=where,
            problem="is a timestamp without a time zone, which means another instant on every machine",
            remedy="Use timestamp-micros, or a date and a field with the zone.",
        )
    elif (kind, node.logical) not in LOGICAL:
        allowed = ", ".join(sorted(f"{logical} on {base}" for base, logical in LOGICAL))
        yield Finding(
            path=where, problem=f"has the logical type {node.logical:.40} on {kind}", remedy=f"Use {allowed}."
        )
    elif node.logical == "decimal":
        most = 1000 if isinstance(node, Primitive) else len(str(2 ** (8 * node.size - 1) - 1)) - 1 if node.size else 0
        if not node.precision or node.precision > most:
            yield Finding(
                path=where,
                problem="is a decimal without a usable precision",
                remedy=f"Give it one from 1 to {most}, a JSON number.",
            )
        elif node.scale > node.precision:
            yield Finding(
                path=where,
                problem=f"is a decimal with scale {node.scale} over precision {node.precision}",
                remedy="Make the precision the larger: all digits, those after the point included.",
            )
    elif node.logical == "uuid" and isinstance(node, Fixed) and node.size != 16:
        yield Finding(path=where, problem="is a uuid that has not 16 bytes", remedy="Use string, or fixed of size 16.")


def _lint_default(field: Field, where: str) -> Iterator[Finding]:
    try:
        plain = default_value(field.type, field.default)
        if not named_types(field.type):
            (from_plain(field.type, _no_class) or repr)(plain)
    except (ValueError, OverflowError, TypeError) as error:
        first = isinstance(field.type, Union)
        yield Finding(
            path=where,
            problem="has a default that does not fit " + ("the first type of its union" if first else "its type"),
            remedy="Put the default's type first in the union." if first else f"Write {error}.",
        )


def _no_class(name: str) -> type[Any]:
    raise SchemaError(f"{name} has no class yet.", remedy="Run `onceward schemas generate FOLDER`.")


def _python_kind(node: AvroType) -> str:
    match node:
        case Primitive(kind="int" | "long"):
            return "an int"
        case Primitive(kind="float" | "double"):
            return "a float"
        case Primitive(kind="bytes") | Fixed():
            return "bytes"
        case Primitive(kind=kind):
            return kind
        case Array() | Map():
            return type(node).__name__
        case Enum(name=name) | Record(name=name):
            return name
        case Union():
            return "a union"
