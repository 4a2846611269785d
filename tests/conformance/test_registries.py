"""One suite for every registry: the client on a real registry, and the one in memory that tests use."""

from __future__ import annotations

import copy
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onceward_schemas.errors import SchemaIncompatibleError, SchemaMissingError
from onceward_schemas.registry import Registry, RegistryClient
from onceward_testing.registry import MemoryRegistry
from tests.support.avro_values import avro_command
from tests.support.services import Services


@pytest.fixture(params=["memory", "client"])
def registry(request: pytest.FixtureRequest) -> Registry:
    if request.param == "memory":
        return MemoryRegistry()
    services: Services = request.getfixturevalue("services")
    return RegistryClient(services.registry_url)


@pytest.fixture
def avro() -> dict[str, Any]:
    """A schema that nobody else has registered."""
    return avro_command([{"name": "x", "type": "int"}], name=f"T{uuid.uuid4().hex}")


def subject(avro: dict[str, Any]) -> str:
    return f"made.{avro['name']}"


def with_field(avro: dict[str, Any], name: str, **rest: Any) -> dict[str, Any]:
    new = copy.deepcopy(avro)
    new["fields"].append({"name": name, "type": "int", **rest})
    return new


def test_what_is_registered_is_found_by_id_and_by_schema(registry: Registry, avro: dict[str, Any]) -> None:
    schema_id = registry.register(subject(avro), avro)
    assert registry.schema(schema_id) == avro
    assert registry.schema_id(subject(avro), avro) == schema_id
    (version,) = registry.versions(subject(avro))
    assert (version.version, version.id, version.avro) == (1, schema_id, avro)


def test_registering_twice_gives_the_same_id(registry: Registry, avro: dict[str, Any]) -> None:
    assert registry.register(subject(avro), avro) == registry.register(subject(avro), avro)
    assert len(registry.versions(subject(avro))) == 1


def test_registering_from_many_threads_gives_one_id(registry: Registry, avro: dict[str, Any]) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: registry.register(subject(avro), avro), range(16)))) == 1


def test_a_compatible_schema_is_a_version(registry: Registry, avro: dict[str, Any]) -> None:
    first = registry.register(subject(avro), avro)
    second = registry.register(subject(avro), with_field(avro, "y", default=0))
    assert first != second
    assert [(version.version, version.id) for version in registry.versions(subject(avro))] == [(1, first), (2, second)]
    assert registry.schema_id(subject(avro), avro) == first


def test_an_incompatible_schema_is_refused(registry: Registry, avro: dict[str, Any]) -> None:
    registry.register(subject(avro), avro)
    with pytest.raises(SchemaIncompatibleError):
        registry.register(subject(avro), with_field(avro, "y"))
    assert len(registry.versions(subject(avro))) == 1


def test_a_schema_must_suit_every_version(registry: Registry, avro: dict[str, Any]) -> None:
    registry.register(subject(avro), with_field(avro, "y"))
    registry.register(subject(avro), avro)
    again = copy.deepcopy(avro)
    again["fields"].append({"name": "y", "type": "string", "default": ""})
    with pytest.raises(SchemaIncompatibleError):
        registry.register(subject(avro), again)


def test_what_is_not_there_is_missing(registry: Registry, avro: dict[str, Any]) -> None:
    with pytest.raises(SchemaMissingError) as caught:
        registry.schema(2_000_000_000)
    assert caught.value.remedy
    with pytest.raises(SchemaMissingError):
        registry.schema_id(subject(avro), avro)
    assert registry.versions(subject(avro)) == ()
    registry.register(subject(avro), avro)
    with pytest.raises(SchemaMissingError):
        registry.schema_id(subject(avro), with_field(avro, "y", default=0))


def test_a_change_of_documentation_only_finds_the_same_id(registry: Registry, avro: dict[str, Any]) -> None:
    schema_id = registry.register(subject(avro), avro)
    told = copy.deepcopy(avro)
    told["doc"] = "Said now."
    told["fields"][0]["doc"] = "A number."
    assert registry.schema_id(subject(avro), told) == schema_id


def test_a_raised_version_is_a_schema_of_its_own(registry: Registry, avro: dict[str, Any]) -> None:
    first = registry.register(subject(avro), avro)
    raised = copy.deepcopy(avro)
    raised["onceward"]["version"] = 7
    assert registry.register(subject(avro), raised) != first
    assert registry.versions(subject(avro))[-1].avro["onceward"]["version"] == 7
