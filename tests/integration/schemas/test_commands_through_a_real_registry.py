"""Registering, encoding and decoding with a real registry, from the command line to the bytes."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from onceward_cli.main import main
from onceward_schemas.codec import Codec
from onceward_schemas.errors import SchemaMissingError, UndecodableError
from onceward_schemas.registry import RegistryClient
from tests.support.avro_values import avro_command, generated
from tests.support.charges import charge
from tests.support.commands import Charge, Increment
from tests.support.services import Services


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one type that nobody else has."""
    found = tmp_path / "schemas"
    found.mkdir()
    write(found, avro_command([{"name": "x", "type": "int"}], name=f"T{uuid.uuid4().hex}"))
    return found


@pytest.fixture(autouse=True)
def _addressed(services: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_REGISTRY_URL", services.registry_url)


def write(folder: Path, avro: dict[str, Any]) -> None:
    (folder / "made.avsc").write_text(json.dumps(avro))


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "made.avsc").read_text())
    return found


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any, str]:
    """Exit code, JSON of stdout, and stderr."""
    with pytest.raises(SystemExit) as caught:
        main(["schemas", *arguments, "--output", "json"])
    out, err = capsys.readouterr()
    return int(caught.value.code or 0), json.loads(out) if out else None, err


def test_a_folder_is_planned_registered_and_then_unchanged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, state in (
        (["check", str(folder), "--registry"], "new"),
        (["register", str(folder), "--dry-run"], "new"),
        (["register", str(folder)], "new"),
        (["register", str(folder)], "unchanged"),
        (["check", str(folder)], "unchanged"),
    ):
        code, rows, _ = run(*arguments, capsys=capsys)
        assert (code, [row["state"] for row in rows]) == (0, [state])


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ({"name": "y", "type": "int"}, "y"),
        ({"name": "when", "type": {"type": "long", "logicalType": "timestamp-micros"}}, "when"),
        ({"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}}, "price"),
    ],
)
def test_a_breaking_change_is_refused_with_its_path(
    folder: Path, field: dict[str, Any], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    avro = read(folder)
    avro["fields"] += [
        {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ]
    write(folder, avro)
    run("register", str(folder), capsys=capsys)
    avro["fields"] = [old for old in avro["fields"] if old["name"] != field["name"]] + [field]
    write(folder, avro)
    for verb in ("check", "register"):
        code, rows, err = run(verb, str(folder), capsys=capsys)
        assert code == 1
        assert [(row["state"], [reason["path"] for reason in row["reasons"]]) for row in rows] == [("refused", [path])]
        assert f"made.avsc: {path} " in err


def test_a_change_of_documentation_is_told_to_be_kept_out_by_the_registry(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("register", str(folder), capsys=capsys)
    write(folder, read(folder) | {"doc": "Said now."})
    code, rows, _ = run("register", str(folder), capsys=capsys)
    assert (code, rows[0]["state"], rows[0]["version"]) == (0, "unchanged", 1)
    assert "documentation" in rows[0]["note"]


def test_a_command_goes_through_and_comes_back(services: Services) -> None:
    registry = RegistryClient(services.registry_url)
    for command in (Charge, Increment):
        registry.register(command.SCHEMA.name, command.SCHEMA.avro)
    sender = Codec(RegistryClient(services.registry_url))
    receiver = Codec(RegistryClient(services.registry_url), [Charge, Increment])
    receiver.preload()
    for sent in (charge(labels={"a": "b"}), Increment(counter="a")):
        assert receiver.decode(sender.encode(sent)) == sent
    with pytest.raises(UndecodableError) as caught:
        receiver.decode(b"\0\x7f\xff\xff\xffabc")
    assert caught.value.reason == "schema_missing"


def test_preloading_leaves_nothing_to_ask_the_registry(services: Services, folder: Path) -> None:
    old = read(folder)
    new = old | {"fields": [*old["fields"], {"name": "y", "type": "int", "default": 5}]}
    registry = RegistryClient(services.registry_url)
    with generated(old) as before, generated(new) as after:
        was, now = getattr(before, old["name"]), getattr(after, old["name"])
        for command in (was, now):
            registry.register(command.SCHEMA.name, command.SCHEMA.avro)
        payload = Codec(registry).encode(was(x=1))
        client = RegistryClient(services.registry_url)
        codec = Codec(client, [now])
        codec.preload()
        client._client._rest_client.base_urls = ["http://127.0.0.1:9"]  # the registry goes away
        assert codec.decode(payload) == now(x=1, y=5)
        assert codec.decode(codec.encode(now(x=2))) == now(x=2)


def test_preloading_an_unregistered_type_says_how_to_register_it(services: Services, folder: Path) -> None:
    with generated(read(folder)) as module, pytest.raises(SchemaMissingError, match="onceward schemas register"):
        Codec(RegistryClient(services.registry_url), [getattr(module, read(folder)["name"])]).preload()
