"""`from onceward import outbox` on a real registry and a real database, and on a registry that is not there."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any, ClassVar

import psycopg
import pytest

from onceward_producer.default import AmbientCodec, codec_for
from onceward_producer.outbox import Outbox
from onceward_runtime.settings import load
from onceward_schemas.avsc import command_schema
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.errors import InvalidCommandError, RegistryUnavailableError, SchemaMissingError
from onceward_schemas.registry import RegistryClient
from tests.support.services import Services


def _command_class() -> Any:
    name = f"Move{uuid.uuid4().hex[:8]}"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Move(Command):
        employee_id: int
        SCHEMA: ClassVar[CommandSchema] = command_schema(
            f'{{"type": "record", "name": "{name}", "namespace": "t.publishing",'
            ' "onceward": {"version": 1, "lane": "t.moves", "key": "employee_id", "aggregate": "employee"},'
            ' "fields": [{"name": "employee_id", "type": "long"}]}'
        )

    return Move


@pytest.fixture
def outbox(services: Services, monkeypatch: pytest.MonkeyPatch) -> Outbox:
    monkeypatch.setenv("ONCEWARD_REGISTRY_URL", services.registry_url)
    return Outbox(AmbientCodec())


def test_a_registered_command_is_published_in_bytes_that_can_be_read_back(
    services: Services, database: str, outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    move = _command_class()
    RegistryClient(services.registry_url).register(move.SCHEMA.name, move.SCHEMA.avro)
    outbox.preload(move)
    with psycopg.connect(database) as connection:
        published = outbox.publish(connection, move(employee_id=7))
        [(identity, key, payload)] = connection.execute(
            "select id, aggregateid, payload from onceward.outbox"
        ).fetchall()
    assert (identity, key) == (published.id, "7")
    codec = codec_for(load())
    codec.add(move)
    assert codec.decode(payload) == move(employee_id=7)


def test_a_command_with_a_wrong_value_is_refused_by_field_and_the_transaction_goes_on(
    services: Services, database: str, outbox: Outbox
) -> None:
    move = _command_class()
    RegistryClient(services.registry_url).register(move.SCHEMA.name, move.SCHEMA.avro)
    with psycopg.connect(database) as connection:
        with pytest.raises(InvalidCommandError) as caught:
            outbox.publish(connection, move(employee_id=2**63))
        assert "employee_id" in str(caught.value)
        outbox.publish(connection, move(employee_id=7))


def test_a_type_that_is_not_registered_is_refused(database: str, outbox: Outbox) -> None:
    move = _command_class()
    with psycopg.connect(database) as connection, pytest.raises(SchemaMissingError):
        outbox.publish(connection, move(employee_id=7))
    with pytest.raises(SchemaMissingError):
        outbox.preload(move)


def test_a_registry_that_is_down_leaves_the_transaction_usable(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_REGISTRY_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ONCEWARD_REGISTRY_TIMEOUT", "PT1S")
    cut_off = Outbox(AmbientCodec())
    with psycopg.connect(database) as connection:
        connection.execute("create table employee ()")
        with pytest.raises(RegistryUnavailableError):
            cut_off.publish(connection, _command_class()(employee_id=7))
        connection.execute("insert into employee default values")
    with psycopg.connect(database) as connection:
        assert connection.execute(
            "select (select count(*) from employee), (select count(*) from onceward.outbox)"
        ).fetchall() == [(1, 0)]
