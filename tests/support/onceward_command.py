"""The real command line in processes of its own, with an environment of nothing but what a test says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.services import ROOT, Services

PROGRAM = Path(sys.executable).with_name("onceward")
APPLICATION = """
from onceward import App, fixed
from tests.support.commands import Increment

app = App("{name}")

@app.handler(Increment, lane="{lane}", retry=fixed("300ms", attempts=2))
def increment(command, ctx):
    ctx.connection.execute("insert into effect (counter, amount) values (%s, %s)", (command.counter, command.amount))
"""
EFFECT = "create table effect (seq bigint generated always as identity, counter text, amount int)"


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str

    def check_refusal(self, *phrases: str) -> None:
        """See that it ended with 1 and a message of these phrases, and without a trace."""
        shown = f"{' '.join(self.arguments)} ended with {self.code}:\n{self.out}\n{self.err}"
        assert self.code == 1, shown
        assert self.err.startswith("Error: ") or "\nError: " in self.err, shown
        assert "Traceback" not in self.err, shown
        assert "fault in Onceward" not in self.err, shown
        said = " ".join(self.err.split())
        assert not [phrase for phrase in phrases if phrase not in said], shown


def environment(services: Services, database: str, **more: str) -> dict[str, str]:
    """The settings for these services; `more` without the prefix."""
    given = {
        "kafka_bootstrap_servers": services.bootstrap,
        "registry_url": services.registry_url,
        "database_url": database,
    }
    return {f"ONCEWARD_{name.upper()}": value for name, value in (given | more).items()}


def write_application(folder: Path, name: str, lane: str, module: str = "shop") -> str:
    """An application in a file; returns what the command line calls it."""
    (folder / f"{module}.py").write_text(APPLICATION.format(name=name, lane=lane))
    return f"{module}:app"


def run(folder: Path, settings: Mapping[str, str], *arguments: str, seconds: float = 60) -> Ended:
    """Run one command to its end."""
    done = subprocess.run(
        [PROGRAM, *arguments],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env=_environment(settings),
        timeout=seconds,
    )
    return Ended(arguments, done.returncode, done.stdout, done.stderr)


def run_all(folder: Path, settings: Mapping[str, str], *commands: str) -> list[Ended]:
    """Run several side by side, each given as one line."""
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda line: run(folder, settings, *line.split()), commands))


@dataclass
class Running:
    """A command that runs until it is stopped; its output goes to a file."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self, text: str) -> bool:
        return text in self.log.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None


@contextmanager
def running(folder: Path, settings: Mapping[str, str], *arguments: str) -> Iterator[Running]:
    """A command for the time of the block; it must live until the end of it and leave with 0."""
    log = folder / f"{arguments[0]}-{len(list(folder.iterdir()))}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [PROGRAM, *arguments], stdout=output, stderr=output, cwd=folder, env=_environment(settings)
        )
    try:
        yield Running(process, log)
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0, log.read_text(errors="replace")[-3000:]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
    plain = {"NO_COLOR": "1", "COLUMNS": "200", "TERM": "dumb", "ONCEWARD_LOG_FORMAT": "json"}
    return inherited | plain | {"PYTHONPATH": str(ROOT)} | dict(settings)
