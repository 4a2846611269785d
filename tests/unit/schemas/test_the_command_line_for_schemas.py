"""`onceward schemas` writes, checks and explains, and exits with 1 where something is to be done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onceward_cli.main import main
from tests.support.avro_values import avro_command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "schemas"
    found.mkdir()
    (found / "made.avsc").write_text(json.dumps(avro_command([{"name": "x", "type": "int"}])))
    return found


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["schemas", *map(str, arguments)])
    return int(caught.value.code or 0)


def test_generate_writes_the_module_beside_the_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("generate", folder, "--output", "json") == 0
    module = folder.parent / "commands.py"
    assert json.loads(capsys.readouterr().out) == {"module": str(module), "commands": 1, "state": "written"}
    assert "class Made(Command):" in module.read_text()
    assert run("generate", folder, "--check") == 0
    assert run("generate", folder) == 0
    assert "unchanged" in capsys.readouterr().out


def test_check_prints_a_diff_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("generate", folder)
    module = folder.parent / "commands.py"
    before = module.read_text()
    (folder / "made.avsc").write_text(json.dumps(avro_command([{"name": "y", "type": "long"}])))
    capsys.readouterr()
    assert run("generate", folder, "--check") == 1
    out, err = capsys.readouterr()
    assert "-    x: int" in out
    assert "+    y: int" in out
    assert f"onceward schemas generate {folder}" in err
    assert module.read_text() == before
    assert run("generate", folder, "--check", "-o", "json") == 1
    assert json.loads(capsys.readouterr().out)["state"] == "out of date"


def test_a_module_that_is_not_there_is_out_of_date(folder: Path) -> None:
    assert run("generate", folder, "--check", "--out", folder.parent / "other.py") == 1


def test_a_module_beside_a_folder_of_its_name_is_refused(tmp_path: Path, folder: Path, capsys: Any) -> None:
    folder.rename(tmp_path / "commands")
    assert run("generate", tmp_path / "commands") == 1
    assert "Rename the folder" in capsys.readouterr().err


def test_a_bad_file_is_explained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.avsc").write_text("{")
    for verb in ("generate", "check", "register"):
        assert run(verb, folder) == 1
        assert "bad.avsc, line 1" in capsys.readouterr().err


def test_check_does_without_a_registry_unless_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ONCEWARD_REGISTRY_URL", "http://127.0.0.1:9")
    assert run("check", folder, "-o", "json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)[0]["state"] == "usable"
    assert "Only the files were checked" in err
    assert run("check", folder, "--offline") == 0
    assert run("check", folder, "--registry") == 1
    assert run("register", folder) == 1
    assert "ONCEWARD_REGISTRY_URL" in capsys.readouterr().err
