"""The generated module is the same for the same files, formatted, importable, and equal to what is committed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from onceward_schemas.avsc import load_folder
from onceward_schemas.generate import generated_module
from tests.support.avro_values import avro_command, command_file, generated

ROOT = Path(__file__).parents[3]
COMMITTED = ("tests/support", "examples/hr")

AWKWARD = avro_command(
    [
        {
            "name": "date",
            "type": {"type": "int", "logicalType": "date"},
            "default": 19_000,
            "doc": 'Say """hello""" \\n',
        },
        {"name": "datetime", "type": {"type": "long", "logicalType": "timestamp-micros"}, "default": 1},
        {"name": "time", "type": {"type": "int", "logicalType": "time-millis"}, "default": 1001},
        {"name": "UUID", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "other", "type": {"type": "int", "logicalType": "date"}},
        {"name": "names", "type": {"type": "map", "values": "string"}, "default": {'qu"ote': "ü\\"}},
        {"name": "raw", "type": "bytes", "default": "\"'\\\n\u00ff"},
        {"name": "one", "type": {"type": "array", "items": "int"}, "default": [1]},
        {
            "name": "inner",
            "type": {
                "type": "record",
                "name": "Inner",
                "doc": 'Ends in a "quote"',
                "fields": [
                    {
                        "name": "kind",
                        "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"], "default": "A"},
                        "default": "B",
                    }
                ],
            },
            "default": {},
        },
    ]
)


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


def test_the_module_passes_ruff_and_mypy_strict(tmp_path: Path) -> None:
    path = tmp_path / "awkward.py"
    path.write_text(generated_module([command_file(AWKWARD)], folder="made"))
    config = str(ROOT / "pyproject.toml")
    for command in (
        ["ruff", "format", "--diff", "--config", config, str(path)],
        ["ruff", "check", "--config", config, str(path)],
        [
            "mypy",
            "--strict",
            "--config-file",
            config,
            "--follow-imports=silent",
            "--cache-dir",
            str(tmp_path),
            str(path),
        ],
    ):
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_in_the_class_is_the_one_of_the_file() -> None:
    for folder in COMMITTED:
        for file in load_folder(ROOT / folder / "schemas"):
            assert file.schema.avro == json.loads(file.path.read_text())
