"""Where a stack lies and whether it runs can be told without its process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from onceward_devstack.places import command, stack_home, stacks_folder
from onceward_devstack.processes import start_ticks
from onceward_devstack.stack import remove_data
from onceward_devstack.state import (
    ServiceState,
    StackState,
    lock_folder,
    read_state,
    write_state,
)
from onceward_schemas.errors import DevstackError


def service(pid: int, started: int | None) -> ServiceState:
    return ServiceState(name="kafka", address="127.0.0.1:1", version="4", pid=pid, started=started, log="x")


def running(home: Path) -> StackState:
    me = os.getpid()
    state = StackState(name=home.name, phase="running", pid=me, services=(service(me, start_ticks(me)),))
    write_state(home, state)
    return state


def test_a_held_stack_runs(tmp_path: Path) -> None:
    written = running(tmp_path)
    with lock_folder(tmp_path):
        assert read_state(tmp_path) == written
        assert read_state(tmp_path).healthy


def test_a_stack_whose_process_died_is_stopped_whatever_its_file_says(tmp_path: Path) -> None:
    running(tmp_path)
    lock_folder(tmp_path).close()
    assert read_state(tmp_path).phase == "stopped"


def test_a_pid_that_now_belongs_to_another_process_is_not_taken_for_the_server() -> None:
    assert service(os.getpid(), start_ticks(os.getpid())).alive
    assert not service(os.getpid(), 1).alive


@pytest.mark.parametrize("content", ["", "{", "[]", '{"services": [{"unknown": 1}]}'])
def test_a_damaged_state_file_reads_as_stopped(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    assert read_state(tmp_path).phase == "stopped"


def test_one_folder_has_one_owner(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(DevstackError, match="Another process runs a stack"):
        lock_folder(tmp_path)
    lock_folder(tmp_path).close()


def test_a_project_keeps_its_stacks(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    inner = tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    assert stacks_folder(start=inner) == tmp_path / ".onceward" / "dev"


def test_outside_a_project_the_user_keeps_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert stacks_folder(start=tmp_path) == tmp_path / "data" / "onceward" / "dev"


@pytest.mark.parametrize("name", ["", "../x", "a/b", "a b"])
def test_a_name_that_could_leave_the_folder_is_refused(name: str) -> None:
    with pytest.raises(DevstackError, match="is not a name"):
        stack_home(name)


def test_nothing_but_a_stacks_folder_is_deleted(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(DevstackError, match="nothing was deleted"):
        remove_data(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_a_running_stack_is_not_deleted(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(DevstackError, match="onceward dev down"):
        remove_data(tmp_path)
    remove_data(tmp_path)
    assert not tmp_path.exists()


def test_a_command_line_means_the_same_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".onceward").mkdir()
    monkeypatch.chdir(tmp_path)
    assert command("up", stack_home("default")) == "onceward dev up"
    assert command("up", stack_home("other")) == "onceward dev up --name other"
    elsewhere = stack_home("other", tmp_path / "my data")
    assert command("logs kafka", elsewhere) == f"onceward dev logs kafka --name other --home '{tmp_path}/my data'"
