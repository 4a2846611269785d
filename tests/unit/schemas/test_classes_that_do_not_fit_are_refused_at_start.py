"""A class that is not what its schema says is refused when the codec learns of it, not at the first record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from onceward_schemas.codec import Codec
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.errors import InvalidCommandError, SchemaError
from onceward_testing.registry import MemoryRegistry
from tests.support.avro_values import avro_command, command_file, generated
from tests.support.commands import Charge, Increment


def test_a_class_with_other_fields_is_refused() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Stale(Command):
        counter: str
        SCHEMA: ClassVar[CommandSchema] = Increment.SCHEMA

    with pytest.raises(SchemaError, match=r"Stale has not the fields.*onceward schemas generate"):
        Codec(MemoryRegistry(), [Stale])


def test_a_class_whose_parts_are_not_beside_it_is_refused() -> None:
    with generated(Charge.SCHEMA.avro) as module:
        del module.Channel
        with pytest.raises(SchemaError, match="has no class Channel"):
            Codec(MemoryRegistry(), [module.Charge])


def test_two_classes_of_one_name_are_refused_and_one_twice_is_not() -> None:
    avro = avro_command(["int"])
    with generated(avro) as one, generated(avro) as two:
        codec = Codec(MemoryRegistry(), [one.Made, one.Made])
        with pytest.raises(SchemaError, match=r"Two classes stand for made\.Made"):
            codec.add(two.Made)


def test_what_has_no_schema_is_refused() -> None:
    with pytest.raises(InvalidCommandError, match="is not a command"):
        Codec(MemoryRegistry(), [Command])


def test_a_class_that_checks_itself_still_does_when_it_is_decoded() -> None:
    file = command_file(avro_command([{"name": "x", "type": "int"}]))

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Checked(Command):
        x: int
        SCHEMA: ClassVar[CommandSchema] = file.schema

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError

    registry = MemoryRegistry(Checked)
    codec = Codec(registry, [Checked])
    payload = codec.encode(Checked(x=0))
    assert codec.decode(payload) == Checked(x=0)
    with pytest.raises(Exception, match="not Avro of schema id 1"):
        codec.decode(payload[:-1] + b"\x01")
