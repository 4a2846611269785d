"""`onceward dev` commands on a stack that does not run fail with a sentence, not a stack trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from onceward_cli.dev import app
from onceward_devstack.state import StackState, lock_folder, write_state


def invoke(home: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments[:1], "--home", str(home), *arguments[1:]])


@pytest.mark.parametrize("command", [("env",), ("run", "true"), ("logs",)])
def test_they_say_how_to_start_it(tmp_path: Path, command: tuple[str, ...]) -> None:
    result = invoke(tmp_path, *command)
    assert result.exit_code == 1
    assert "onceward dev up" in result.stderr
    assert "Traceback" not in result.output


def test_status_is_readable_by_programs(tmp_path: Path) -> None:
    result = invoke(tmp_path, "status", "--output", "json")
    assert result.exit_code == 1
    status = json.loads(result.stdout)
    assert status["phase"] == "stopped"
    assert status["services"] == []


def test_status_tells_why_the_last_start_failed(tmp_path: Path) -> None:
    home = tmp_path / "default"
    home.mkdir()
    write_state(home, StackState(name="default", phase="failed", error="Port 1 is taken.", remedy="Free it."))
    result = invoke(tmp_path, "status")
    assert "could not start: Port 1 is taken." in result.stdout
    assert "Free it." in result.stdout


def test_down_without_a_stack_is_fine(tmp_path: Path) -> None:
    result = invoke(tmp_path, "down")
    assert result.exit_code == 0
    assert "was not running" in result.stderr


def test_reset_does_not_delete_unasked(tmp_path: Path) -> None:
    home = tmp_path / "default"
    home.mkdir()
    lock_folder(home).close()
    assert "--yes" in invoke(tmp_path, "reset").stderr
    assert home.exists()
    assert invoke(tmp_path, "reset", "--yes").exit_code == 0
    assert not home.exists()


def test_an_unknown_service_is_answered_with_the_known_ones(tmp_path: Path) -> None:
    result = invoke(tmp_path, "logs", "zookeeper")
    assert result.exit_code == 1
    assert "kafka, postgres, registry, supervisor" in result.stderr


def test_the_name_of_a_stack_is_checked(tmp_path: Path) -> None:
    assert "is not a name" in invoke(tmp_path, "status", "--name", "../x").stderr
