"""Registering says per type what happens, and where one type is refused none is registered."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from onceward_schemas import registration
from onceward_schemas.errors import SchemaIncompatibleError
from onceward_schemas.registration import State
from onceward_testing.registry import MemoryRegistry
from tests.support.avro_values import avro_command, command_file

FIRST = avro_command([{"name": "x", "type": {"type": "int", "logicalType": "date"}}], name="First")
SECOND = avro_command([{"name": "x", "type": "int"}], name="Second")


def changed(avro: dict[str, Any], **field: Any) -> dict[str, Any]:
    new = copy.deepcopy(avro)
    new["fields"].append(field)
    return new


def states(*schemas: dict[str, Any], registry: MemoryRegistry) -> list[State]:
    return [verdict.state for verdict in registration.register(map(command_file, schemas), registry)]


def test_new_types_are_registered_once() -> None:
    registry = MemoryRegistry()
    assert states(FIRST, SECOND, registry=registry) == [State.NEW, State.NEW]
    assert states(FIRST, SECOND, registry=registry) == [State.UNCHANGED, State.UNCHANGED]
    assert [version.id for version in registry.versions("made.First")] == [1]


def test_a_plan_changes_nothing() -> None:
    registry = MemoryRegistry()
    assert [verdict.state for verdict in registration.plan([command_file(FIRST)], registry)] == [State.NEW]
    assert registry.versions("made.First") == ()


def test_a_safe_change_becomes_a_version() -> None:
    registry = MemoryRegistry()
    states(FIRST, registry=registry)
    (verdict,) = registration.register([command_file(changed(FIRST, name="y", type="int", default=0))], registry)
    assert (verdict.state, verdict.version, verdict.schema_id) == (State.NEW_VERSION, 2, 2)


def test_one_refusal_keeps_all_from_being_registered() -> None:
    registry = MemoryRegistry()
    states(FIRST, registry=registry)
    broken = changed(FIRST, name="y", type="int")
    verdicts = registration.register([command_file(broken), command_file(SECOND)], registry)
    assert [verdict.state for verdict in verdicts] == [State.REFUSED, State.NEW]
    assert registry.versions("made.Second") == ()
    with pytest.raises(SchemaIncompatibleError, match=r"made\.First: y is new and has no default"):
        registration.require(verdicts)


def test_every_version_counts_and_not_only_the_latest() -> None:
    registry = MemoryRegistry()
    states(avro_command([{"name": "x", "type": "int"}, {"name": "y", "type": "string"}]), registry=registry)
    states(avro_command([{"name": "x", "type": "int"}]), registry=registry)
    again = avro_command([{"name": "x", "type": "int"}, {"name": "y", "type": "int", "default": 0}])
    (verdict,) = registration.plan([command_file(again)], registry)
    assert verdict.state is State.REFUSED
    assert [reason.path for reason in verdict.reasons] == ["y"]


def test_a_change_of_documentation_only_is_no_change_and_said() -> None:
    registry = MemoryRegistry()
    states(FIRST, registry=registry)
    (verdict,) = registration.register([command_file({**FIRST, "doc": "Said better."})], registry)
    assert verdict.state is State.UNCHANGED
    assert "documentation" in (verdict.note or "")
    assert registry.schema_id("made.First", {**FIRST, "doc": "Said better."}) == 1
