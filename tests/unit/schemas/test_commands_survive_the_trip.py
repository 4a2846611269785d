"""What is encoded is decoded equal, for every type a command may have, in any combination."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceward_schemas.codec import Codec
from onceward_testing.registry import MemoryRegistry
from tests.support.avro_values import avro_command, commands_of, generated, types_of_fields
from tests.support.commands import Charge, Increment, Settle

CODEC = Codec(MemoryRegistry(Charge, Increment, Settle), [Charge, Increment, Settle])


@given(commands_of(Charge))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_a_command_with_every_type_comes_back_equal(command: Charge) -> None:
    decoded = CODEC.decode(CODEC.encode(command))
    assert decoded == command
    assert type(decoded) is Charge


@given(st.data())
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_a_command_of_any_schema_comes_back_equal(data: st.DataObject) -> None:
    avro = avro_command([{"name": f"f{n}", "type": data.draw(types_of_fields())} for n in range(3)])
    with generated(avro) as module:
        command: Any = data.draw(commands_of(module.Made))
        codec = Codec(MemoryRegistry(module.Made), [module.Made])
        assert codec.decode(codec.encode(command)) == command


def test_the_bytes_are_framed_as_confluent_does() -> None:
    payload = CODEC.encode(Settle(batch=-1))
    assert payload == b"\0" + (3).to_bytes(4, "big") + b"\x01"
    assert CODEC.inspect(payload).values == {"batch": -1}


def test_a_decoded_command_is_frozen_and_hashable() -> None:
    command = CODEC.decode(CODEC.encode(Increment(counter="a", amount=3)))
    assert hash(command) == hash(Increment(counter="a", amount=3))
    assert repr(command) == "Increment(counter='a', amount=3, note=None)"
    try:
        command.amount = 4  # type: ignore[attr-defined]
    except AttributeError:
        return
    raise AssertionError("a field could be set")
