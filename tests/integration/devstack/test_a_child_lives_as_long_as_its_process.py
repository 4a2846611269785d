"""A server outlives the thread that asked for it, and never the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onceward_devstack.launcher import Process, launch
from onceward_devstack.processes import family, start_ticks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the death signal is Linux's")

PARENT = """
import sys, threading
from pathlib import Path
from onceward_devstack.launcher import launch
folder = Path(sys.argv[1])
child = launch(["/bin/sleep", "60"], log=folder / "log", folder=folder, death_signal=9)
print(child.pid, flush=True)
threading.Event().wait()
"""


def eventually(condition: Callable[[], bool], seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def runs(pid: int, program: str) -> bool:
    """Whether the child has got past its preparation; what happens before that is another matter."""
    return Path(f"/proc/{pid}/comm").read_text().strip() == program


@pytest.mark.parametrize("moment", ["while it starts", "later"])
def test_it_ends_with_a_killed_parent(tmp_path: Path, moment: str) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert moment == "while it starts" or eventually(lambda: runs(child, "sleep"))
        parent.kill()
    assert eventually(lambda: start_ticks(child) is None)


def test_it_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started: list[Process] = []

    def start() -> None:
        log = tmp_path / "log"
        started.append(launch(["/bin/sleep", "60"], log=log, folder=tmp_path, death_signal=signal.SIGKILL))
        assert eventually(lambda: runs(started[0].pid, "sleep"))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    child = started[0]
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
    finally:
        child.kill()
        child.wait()


def test_it_does_not_see_other_programs_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGOPTIONS", "-c fsync=off")
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", "-Xmx1g")
    log = tmp_path / "log"
    child = launch(["/usr/bin/env"], log=log, folder=tmp_path, death_signal=9, environment={"PGTZ": "UTC"})
    child.wait(5)
    names = {line.split("=")[0] for line in log.read_text().splitlines()}
    assert "PATH" in names
    assert "PGTZ" in names
    assert not names & {"PGOPTIONS", "JAVA_TOOL_OPTIONS"}


def test_a_family_is_a_process_with_all_its_descendants() -> None:
    with subprocess.Popen(["/bin/sh", "-c", "sleep 60 & wait"]) as shell:
        try:
            assert eventually(lambda: len(family(shell.pid)) == 2)
        finally:
            for pid in reversed(family(shell.pid)):
                os.kill(pid, signal.SIGKILL)
