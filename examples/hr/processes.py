"""The demo's processes: relay, workers, scheduler and gateway, each a program of its own that can be killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from onceward_devstack.launcher import launch


class Program:
    """One program, started again after a kill; its output goes to a file of its name."""

    def __init__(self, name: str, arguments: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._arguments = arguments
        self._log = folder / f"{name}.log"
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it appends to its log, and ends when the demo ends."""
        self._process = launch(
            [sys.executable, "-m", *self._arguments],
            log=self._log,
            folder=Path.cwd(),
            death_signal=signal.SIGKILL,
            environment=self._environment,
        )

    def kill(self) -> None:
        """SIGKILL: no clean-up, no farewell."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self, seconds: float = 30) -> None:
        """SIGTERM, and wait for it to finish its work."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def ended(self) -> bool:
        """Whether it stopped by itself, which none of them should."""
        return self._process is not None and self._process.poll() is not None

    def last_words(self) -> str:
        """The end of its log."""
        return self._log.read_bytes()[-2000:].decode(errors="replace") if self._log.exists() else ""
