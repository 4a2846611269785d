"""The quickstart of README.md works as it is printed, on services of its own, and charges once however often it is run.

Its files are written to an empty folder and its shell block is run there line by line, but for installing Onceward; the
services live in that folder too, and are gone afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psycopg
import pytest

README = Path(__file__).parents[2] / "README.md"
FENCE = re.compile(r'^```\w+ title="(?P<title>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)
SCRIPT = "run"
STOP = "stop"
ORDER = "python order.py"
CHARGED = "[('A-1', 4200)]"
MOST_LINES = 30


def quickstart() -> dict[str, str]:
    """The fenced blocks that have a title."""
    return {match["title"]: match["text"] for match in FENCE.finditer(README.read_text())}


def shell_lines() -> list[str]:
    """What a reader types, without installing."""
    return [line for line in quickstart()[SCRIPT].splitlines() if not line.startswith("pip install")]


def eventually(found: Callable[[], bool], what: str, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < until, f"after {seconds} s: {what}"
        time.sleep(0.05)


class Shell:
    """One bash in a process group of its own, which is fed line by line as by a reader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        self._said = (folder / "said").open("w")
        self._bash = subprocess.Popen(
            ["bash", "-e", "-s"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=self._said,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._typed = 0

    def type(self, line: str, seconds: float = 120) -> None:
        """Run a line and wait until the shell asks for the next."""
        assert self._bash.stdin is not None
        self._typed += 1
        done = self.folder / f"done-{self._typed}"
        with suppress(BrokenPipeError):
            self._bash.stdin.write(f"{line}\ntouch {done.name}\n")
            self._bash.stdin.flush()
        eventually(lambda: done.exists() or self._bash.poll() is not None, f"{line} has not ended", seconds)
        assert done.exists(), f"{line} failed:\n{self.said()}"

    def said(self) -> str:
        """What the programs printed."""
        return (self.folder / "said").read_text()

    def alone(self) -> bool:
        """Whether nothing that it started in the background is left."""
        return not Path(f"/proc/{self._bash.pid}/task/{self._bash.pid}/children").read_text().split()

    def end(self) -> None:
        """Stop what was started in the background as Ctrl-C and closing the terminal would."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._bash.pid, number)
            with suppress(AssertionError):
                eventually(self._empty, "processes are left", 30)
                break
        self._said.close()

    def _empty(self) -> bool:
        self._bash.poll()
        try:
            os.killpg(self._bash.pid, 0)
        except ProcessLookupError:
            return True
        return False


@pytest.fixture
def shell() -> Iterator[Shell]:
    folder = Path(tempfile.mkdtemp(prefix="onceward-quickstart-"))
    (folder / ".onceward").mkdir()  # so that `onceward dev` keeps its data here, as in any project
    for title, text in quickstart().items():
        if title not in (SCRIPT, STOP):
            (folder / title).parent.mkdir(parents=True, exist_ok=True)
            (folder / title).write_text(text)
    started = Shell(folder)
    try:
        yield started
    finally:
        started.end()
        reset = [sys.executable, "-m", "onceward_cli.main", "dev", "reset", "--yes"]
        subprocess.run(reset, cwd=folder, check=True, capture_output=True, timeout=60)
        shutil.rmtree(folder)


def database(folder: Path) -> str:
    """Where the stack of a folder has its database."""
    told = subprocess.run(
        [sys.executable, "-m", "onceward_cli.main", "dev", "run", "--", "printenv", "ONCEWARD_DATABASE_URL"],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return told.stdout.strip()


def test_the_quickstart_fits_on_a_page() -> None:
    blocks = quickstart()
    assert sum(len(text.splitlines()) for text in blocks.values()) <= MOST_LINES
    assert shell_lines()[-2].startswith(ORDER)
    assert f"{ORDER} " in shell_lines()[-1]
    assert CHARGED in shell_lines()[-1]


def test_the_quickstart_charges_once_however_often_it_is_run(shell: Shell) -> None:
    *lines, again = shell_lines()
    for line in lines:
        shell.type(line)
    with psycopg.connect(database(shell.folder), autocommit=True) as connection:

        def asked(sql: str) -> object:
            row = connection.execute(sql).fetchone()
            return row and row[0]

        eventually(lambda: asked("select count(*) from charged") == 1, f"no charge; {shell.said()}")
        shell.type(again)
        assert shell.said().splitlines().count(CHARGED) == 1, shell.said()
        shell.type(ORDER)
        # Commands of a key come in order: when another charge of A-1 is there, so is whatever the repeats published.
        shell.type("""sed 's/cents=4200/cents=1/; s/dedupe_key="A-1"/dedupe_key="more"/' order.py > more.py""")
        shell.type("python more.py")
        eventually(lambda: asked("select count(*) from charged where cents = 1") == 1, f"no more; {shell.said()}")
        assert asked("select count(*) from charged where cents = 4200") == 1
        assert asked("select count(*) from onceward.ledger where state = 'done'") == 2
    shell.type(quickstart()[STOP].strip())
    assert "is stopped" in shell.said()
    eventually(shell.alone, f"the worker or the relay is left; {shell.said()}")
