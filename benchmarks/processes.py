"""Processes that are measured from outside: a relay, a worker, a scheduler, or a reference."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
COMMAND_LINE = "onceward_cli.main"


class Measured:
    """A running process and what it has used."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def peak_mb(self) -> float:
        """The most memory that it had resident."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
        return 0.0

    def check(self) -> None:
        """Raises: RuntimeError when it has ended."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.returncode}.")


@contextmanager
def running(module: str, *arguments: str, environment: Mapping[str, str]) -> Iterator[Measured]:
    """A module as a process until the body is through; asked to stop then, and made to."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        preexec_fn=_die_with_parent,  # noqa: PLW1509  it calls one C function
    )
    try:
        yield Measured(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def until(condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.01) -> None:
    """Wait for a condition. Raises: TimeoutError saying what did not come."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"Not within {seconds:.0f} s: {what}.")
        time.sleep(pause)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
