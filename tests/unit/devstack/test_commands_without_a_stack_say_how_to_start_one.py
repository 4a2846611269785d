"""`onceward dev` commands on a stack that does not run fail with a sentence, not a stack trace."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from onceward_cli.main import main
from onceward_devstack.state import StackState, lock_folder, write_state


@dataclass(frozen=True)
class Result:
    code: object
    out: str
    err: str


@dataclass(frozen=True)
class Dev:
    """Runs `onceward dev` in this process, with one --home."""

    home: Path
    captured: pytest.CaptureFixture[str]

    def __call__(self, verb: str, *arguments: str) -> Result:
        with pytest.raises(SystemExit) as ended:
            main(["dev", verb, "--home", str(self.home), *arguments])
        text = self.captured.readouterr()
        return Result(ended.value.code or 0, text.out, text.err)


@pytest.fixture
def dev(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Dev:
    return Dev(tmp_path, capsys)


@pytest.mark.parametrize("command", [("env",), ("run", "true"), ("logs",)])
def test_they_say_how_to_start_it(dev: Dev, command: tuple[str, ...]) -> None:
    result = dev(*command)
    assert result.code == 1
    assert f"onceward dev up --home {dev.home}" in result.err
    assert "Traceback" not in result.err


def test_status_is_readable_by_programs(dev: Dev) -> None:
    result = dev("status", "--output", "json")
    assert result.code == 1
    status = json.loads(result.out)
    assert status["phase"] == "stopped"
    assert status["services"] == []


def test_status_tells_why_the_last_start_failed(dev: Dev) -> None:
    home = dev.home / "default"
    home.mkdir()
    write_state(home, StackState(name="default", phase="failed", error="Port 1 is taken.", remedy="Free it."))
    result = dev("status")
    assert "could not start: Port 1 is taken." in result.out
    assert "Free it." in result.out


def test_down_without_a_stack_is_fine(dev: Dev) -> None:
    result = dev("down")
    assert result.code == 0
    assert "was not running" in result.err
    assert json.loads(dev("down", "--output", "json").out) == {"name": "default", "stopped": False}


@pytest.mark.parametrize("verb", ["env", "logs", "status", "down"])
def test_hints_repeat_the_options_and_name_the_folder(dev: Dev, verb: str) -> None:
    result = dev(verb, "--name", "other")
    said = result.out + result.err
    assert str(dev.home) in said
    if verb != "down":
        assert f"onceward dev up --name other --home {dev.home}" in said


def test_reset_does_not_delete_unasked(dev: Dev) -> None:
    home = dev.home / "default"
    home.mkdir()
    lock_folder(home).close()
    assert "--yes" in dev("reset").err
    assert home.exists()
    assert dev("reset", "--yes").code == 0
    assert not home.exists()


def test_an_unknown_service_is_answered_with_the_known_ones(dev: Dev) -> None:
    result = dev("logs", "zookeeper")
    assert result.code == 1
    assert "kafka, postgres, registry, supervisor" in result.err


def test_the_name_of_a_stack_is_checked(dev: Dev) -> None:
    assert "is not a name" in dev("status", "--name", "../x").err
