"""The generated module is the same for the same files, formatted, importable, and equal to what is committed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceward_schemas.avsc import load_folder
from onceward_schemas.generate import generated_module
from tests.support.avro_values import AWKWARD, avro_command, command_file, generated

ROOT = Path(__file__).parents[3]
COMMITTED = ("tests/support", "examples/hr")


@pytest.mark.parametrize("folder", COMMITTED)
def test_the_committed_module_is_up_to_date(folder: str) -> None:
    files = load_folder(ROOT / folder / "schemas")
    assert (ROOT / folder / "commands.py").read_text() == generated_module(files, folder="schemas")


def test_the_order_of_files_does_not_matter() -> None:
    first, second = (command_file(avro_command(["int"], name=name)) for name in ("A", "B"))
    assert generated_module([first, second], folder="x") == generated_module([first, second], folder="x")


def test_defaults_and_docs_of_awkward_fields_become_right_code() -> None:
    import datetime
    from uuid import UUID

    with generated(AWKWARD) as module:
        command = module.Made(UUID=UUID(int=1), other=datetime.date(2026, 1, 1))
        assert command.date == datetime.date(2022, 1, 8)
        assert command.datetime == datetime.datetime(1970, 1, 1, microsecond=1, tzinfo=datetime.UTC)
        assert command.time == datetime.time(0, 0, 1, 1000)
        assert command.names == {'qu"ote': "ü\\"}
        assert command.raw == b"\"'\\\n\xff"
        assert command.one == (1,)
        assert command.inner == module.Inner(kind=module.Kind.B)
        assert module.Made.SCHEMA.avro == AWKWARD
        assert module.Inner.__doc__.strip() == 'Ends in a "quote"'


def test_the_schema_in_the_class_is_the_one_of_the_file() -> None:
    for folder in COMMITTED:
        for file in load_folder(ROOT / folder / "schemas"):
            assert file.schema.avro == json.loads(file.path.read_text())
