"""Commands to bytes and back: Confluent framing (a zero byte, the schema's id in 4 bytes, then Avro) on fastavro.

Reading resolves the writer's schema by id against the schema of the command's class, so both sides may change apart.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_reader, schemaless_writer

from onceward_schemas.avro import Record, parse, short_name
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.compatibility import breaks
from onceward_schemas.errors import (
    InvalidCommandError,
    PayloadTooLargeError,
    SchemaError,
    SchemaMissingError,
    UndecodableError,
)
from onceward_schemas.leaves import Convert, MismatchError
from onceward_schemas.plain import has_many_branches, plain_schema, reader_schema
from onceward_schemas.registry import Registry
from onceward_schemas.values import ClassOf, record_from_plain, to_plain

MAX_BYTES = 1_000_000 - 16_384
"""The default size cap: Kafka's usual limit less room for key and headers."""
_HEADER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What a payload holds, for people to look at; needs no class."""

    type: str
    schema_id: int
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Known:
    command: type[Command]
    node: Record
    build: Convert


@dataclass(frozen=True, slots=True)
class _Writer:
    prefix: bytes
    schema: Any
    to_plain: Convert


@dataclass(frozen=True, slots=True)
class _Reader:
    writer: Any
    reader: Any
    named: bool
    build: Convert


class Codec:
    """Encodes and decodes the given command types; safe to share between threads."""

    def __init__(
        self, registry: Registry, commands: Iterable[type[Command]] = (), *, max_bytes: int = MAX_BYTES
    ) -> None:
        self._registry = registry
        self._max_bytes = max_bytes
        self._types: dict[str, _Known] = {}
        self._writers: dict[type[Command], _Writer] = {}
        self._readers: dict[int, _Reader] = {}
        self._lock = threading.Lock()
        for command in commands:
            self.add(command)

    def add(self, command: type[Command]) -> None:
        """Make a type known to `decode`. Types that are only encoded need not be added.

        Raises: SchemaError where another class has the name, or the class does not fit its schema.
        """
        schema = _declared(command)
        node = _record(schema)
        known = _Known(command, node, record_from_plain(node, classes_beside(command, node)))
        if self._types.setdefault(schema.name, known).command is not command:
            raise SchemaError(
                f"Two classes stand for {schema.name}.", remedy="Import the generated module once, by one name."
            )

    def preload(self) -> None:
        """Fetch what the known types need, so that no command waits for the registry: own ids, all writers' schemas.

        Raises: SchemaMissingError for a type that is not registered; RegistryUnavailableError.
        """
        for name, known in tuple(self._types.items()):
            self._writer(known.command)
            for version in self._registry.versions(name):
                try:
                    self._reader(version.id)
                except UndecodableError:  # matters only if a record of that version arrives
                    continue

    def encode(self, command: Command) -> bytes:
        """The command's bytes, ready for the outbox.

        Raises: InvalidCommandError that names the field; PayloadTooLargeError; SchemaMissingError where the type is not
        registered; RegistryUnavailableError.
        """
        writer = self._writers.get(type(command)) or self._writer(type(command))
        buffer = BytesIO()
        buffer.write(writer.prefix)
        try:
            schemaless_writer(buffer, writer.schema, writer.to_plain(command))
        except MismatchError as error:
            raise _invalid(command, error) from None
        except UnicodeEncodeError as error:
            raise _invalid(command, _locate_text(command, error)) from None
        payload = buffer.getvalue()
        if len(payload) > self._max_bytes:
            raise PayloadTooLargeError(
                f"{command.SCHEMA.name} takes {len(payload):,} bytes; the cap is {self._max_bytes:,}.",
                remedy="Store the data elsewhere and pass a pointer to it.",
            )
        return payload

    def decode(self, payload: bytes | None) -> Command:
        """The command in a record's value.

        Raises: UndecodableError with reason `empty_payload`, `bad_framing`, `schema_missing`, `unknown_type`,
        `undecodable` or `trailing_bytes`; RegistryUnavailableError, which says nothing about the record.
        """
        payload = payload or b""
        schema_id = _schema_id(payload)
        reader = self._readers.get(schema_id) or self._reader(schema_id)
        buffer = BytesIO(payload)
        buffer.seek(_HEADER)
        try:
            value = schemaless_reader(
                buffer, reader.writer, reader.reader, return_named_type=reader.named, handle_unicode_errors="strict"
            )
            if buffer.tell() == len(payload):
                return reader.build(value)  # type: ignore[no-any-return]
        except Exception as error:
            raise _undecodable(schema_id, error) from error
        raise _trailing(schema_id, len(payload) - buffer.tell())

    def inspect(self, payload: bytes | None) -> Inspected:
        """The payload's values by the writer's own schema. Raises as `decode` does, but for `unknown_type`."""
        payload = payload or b""
        schema_id = _schema_id(payload)
        avro, node = self._written_as(schema_id)
        buffer = BytesIO(payload)
        buffer.seek(_HEADER)
        try:
            values: Any = schemaless_reader(buffer, parse_schema(avro), None)
        except Exception as error:
            raise _undecodable(schema_id, error) from error
        if buffer.tell() != len(payload):
            raise _trailing(schema_id, len(payload) - buffer.tell())
        return Inspected(type=node.name, schema_id=schema_id, values=values)

    def _writer(self, command: type[Command]) -> _Writer:
        schema = _declared(command)
        schema_id = self._registry.schema_id(schema.name, schema.avro)
        node = _record(schema)
        writer = _Writer(
            prefix=b"\0" + schema_id.to_bytes(4, "big"),
            schema=plain_schema(node),
            to_plain=to_plain(node, classes_beside(command, node)),
        )
        return self._writers.setdefault(command, writer)

    def _reader(self, schema_id: int) -> _Reader:
        _, writer = self._written_as(schema_id)
        known = self._types.get(writer.name)
        if known is None:
            raise UndecodableError(
                f"No class stands for {writer.name} (schema id {schema_id}).",
                reason="unknown_type",
                remedy="Register a handler for the type, or send it to another lane.",
            )
        reader = known.node
        unsafe = next(iter(breaks(writer=writer, reader=reader)), None)
        if unsafe is not None:
            raise UndecodableError(
                f"Schema id {schema_id} of {writer.name} cannot be read as the present one: {unsafe.path} {unsafe.problem}.",
                reason="undecodable",
                remedy="Deploy a consumer whose schema is compatible, then replay.",
            )
        with self._lock:
            if schema_id not in self._readers:
                self._readers[schema_id] = _Reader(
                    writer=plain_schema(writer),
                    reader=None if plain_schema(writer) == plain_schema(reader) else reader_schema(reader),
                    named=has_many_branches(writer),
                    build=known.build,
                )
            return self._readers[schema_id]

    def _written_as(self, schema_id: int) -> tuple[Any, Record]:
        try:
            avro = self._registry.schema(schema_id)
            node = parse(avro)
        except SchemaMissingError as error:
            raise UndecodableError(error.message, reason="schema_missing", remedy=error.remedy) from error
        except SchemaError as error:
            raise UndecodableError(
                f"Schema id {schema_id} is not safe to read: {error.message}", reason="undecodable", remedy=error.remedy
            ) from error
        if not isinstance(node, Record):
            raise UndecodableError(
                f"Schema id {schema_id} is not a record.",
                reason="undecodable",
                remedy="Publish commands to this topic only.",
            )
        return avro, node


def classes_beside(command: type[Command], record: Record) -> ClassOf:
    """Find the classes of nested records and enums in the module that holds the command's class, by their short names."""

    def class_of(name: str) -> type[Any]:
        if name == record.name:
            return command
        found = getattr(sys.modules.get(command.__module__), short_name(name), None)
        if not isinstance(found, type):
            raise SchemaError(
                f"{command.__module__} has no class {short_name(name)} for {name}.",
                remedy="Run `onceward schemas generate FOLDER`.",
            )
        return found

    return class_of


def _declared(command: type[Command]) -> CommandSchema:
    schema = getattr(command, "SCHEMA", None)
    if not isinstance(schema, CommandSchema):
        raise InvalidCommandError(
            f"{command.__qualname__} is not a command.",
            remedy="Pass an instance of a class that onceward schemas generated.",
        )
    return schema


def _record(schema: CommandSchema) -> Record:
    node = parse(schema.avro)
    if not isinstance(node, Record):
        raise SchemaError(f"{schema.name} is not a record.", remedy="Make the command's schema a record.")
    return node


def _schema_id(payload: bytes) -> int:
    if not payload:
        raise UndecodableError(
            "The record has no value.",
            reason="empty_payload",
            remedy="Publish through onceward.outbox; a tombstone is not a command.",
        )
    if len(payload) < _HEADER or payload[0] != 0:
        raise UndecodableError(
            "The value does not begin with a zero byte and a schema id.",
            reason="bad_framing",
            remedy="Publish Avro in Confluent framing.",
        )
    return int.from_bytes(payload[1:_HEADER], "big")


def _undecodable(schema_id: int, error: Exception) -> UndecodableError:
    what = "the value ends early" if isinstance(error, EOFError) else type(error).__name__
    return UndecodableError(
        f"The value is not Avro of schema id {schema_id} ({what}).",
        reason="undecodable",
        remedy="Correct what publishes the record.",
    )


def _trailing(schema_id: int, count: int) -> UndecodableError:
    return UndecodableError(
        f"{count:,} bytes follow the value of schema id {schema_id}.",
        reason="trailing_bytes",
        remedy="Publish with the schema that the id names.",
    )


def _invalid(command: Command, error: MismatchError) -> InvalidCommandError:
    name = getattr(type(command), "SCHEMA", None)
    return InvalidCommandError(
        f"{name.name if name else type(command).__name__}.{error.path or '(itself)'} is {shown(error.value)}.",
        field=error.path or None,
        remedy=f"Pass {error.expected}.",
    )


def shown(value: Any) -> str:
    """A value's type, and the value itself only where it is short and cannot be text that somebody typed."""
    if value is None:
        return "None"
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 128):
        return f"the {type(value).__name__} {value!r}"
    return f"of type {type(value).__name__}"


def _locate_text(value: Any, error: UnicodeEncodeError) -> MismatchError:
    expected = "text that UTF-8 can encode (no lone surrogates)"
    return MismatchError(expected, error.object, _path_to(value, error.object) or "")


def _path_to(value: Any, wanted: str) -> str | None:
    if isinstance(value, str):
        return "" if value == wanted else None
    steps: Iterable[tuple[str, Any]] = ()
    if dataclasses.is_dataclass(value):
        steps = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    elif isinstance(value, (list, tuple)):
        steps = ((f"[{position}]", item) for position, item in enumerate(value))
    elif isinstance(value, dict):
        if wanted in value:
            return ""
        steps = ((f"{{{key!s:.40}}}", item) for key, item in value.items())
    for step, inner in steps:
        path = _path_to(inner, wanted)
        if path is not None:
            return MismatchError("", None, path).within(step).path
    return None
