"""The `onceward dev` command line, on stacks in a folder of the test's own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onceward_devstack.processes import family, start_ticks


@dataclass(frozen=True)
class Dev:
    """Runs `onceward dev` with one --home."""

    home: Path

    def command(self, verb: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "onceward_cli.main", "dev", verb, "--home", str(self.home), *arguments]

    def __call__(self, verb: str, *arguments: str, code: int = 0) -> str:
        done = subprocess.run(
            self.command(verb, *arguments), capture_output=True, text=True, timeout=90, check=False, cwd="/"
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def status(self, name: str = "default", code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "--name", name, "--output", "json", code=code))
        return found


def addresses(status: dict[str, Any]) -> dict[str, str]:
    """Where each service answers."""
    return {service["name"]: service["address"] for service in status["services"]}


def processes(status: dict[str, Any]) -> dict[int, int]:
    """Every process of a running stack, the supervisor included, with its start."""
    pids = {pid for service in status["services"] for pid in family(service["pid"])} | {status["pid"]}
    return {pid: ticks for pid in pids if (ticks := start_ticks(pid)) is not None}


def left_of(before: dict[int, int]) -> list[int]:
    """Which of them still run."""
    return [pid for pid, started in before.items() if start_ticks(pid) == started]


def wait_until_gone(before: dict[int, int], seconds: float = 5) -> list[int]:
    """Which of them still run after that time."""
    deadline = time.monotonic() + seconds
    while (left := left_of(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


@pytest.fixture
def dev() -> Iterator[Dev]:
    """A command line whose stacks are deleted after the test."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="onceward-test-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL may run as another user
        found = Dev(Path(folder))
        try:
            yield found
        finally:
            for stack in Path(folder).iterdir():
                if stack.is_dir():
                    found("reset", "--yes", "--name", stack.name)
