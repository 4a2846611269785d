"""One server as a child process: start, stop, kill, freeze, all on the same port and data."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path

from onceward_devstack.launcher import Process
from onceward_devstack.places import command
from onceward_devstack.processes import family
from onceward_schemas.errors import DevstackError

_TAIL_BYTES = 1500


class Server(ABC):
    """A server of the stack. Stopping twice or before a start is fine; so is starting one that runs."""

    stop_signal = signal.SIGTERM

    def __init__(self, name: str, home: Path, *, version: str, port: int) -> None:
        self.name = name
        self.home = home
        self.version = version
        self.port = port
        self.log = home / f"{name}.log"
        self._process: Process | None = None

    @property
    @abstractmethod
    def address(self) -> str:
        """What a client is configured with."""

    @abstractmethod
    def launch(self) -> None:
        """Start the process and return at once."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether it answers."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise DevstackError(f"{self.name} was not started.", remedy="Call start() first.")
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def start(self, timeout_seconds: float = 60) -> None:
        """Start and wait until it answers."""
        if not self.running:
            self.launch()
        self.wait_ready(timeout_seconds)

    def wait_ready(self, timeout_seconds: float = 60) -> None:
        """Raises: DevstackError with the end of the log when it ends or does not answer in time."""
        deadline = time.monotonic() + timeout_seconds
        while not self.is_ready():
            if not self.running:
                raise self._failure(f"ended with code {self.exit_code} while starting")
            if time.monotonic() > deadline:
                raise self._failure(f"did not answer within {timeout_seconds:g} s")
            time.sleep(0.02)

    def stop(self, timeout_seconds: float = 20) -> None:
        """Ask it to end in order; end it by force after the time-out."""
        if self._process is None or not self.running:
            return
        self.resume()  # a frozen process hears nothing
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it and its children at once, as kill -9 would."""
        if self._process is None or not self.running:
            return
        self._signal_family(signal.SIGKILL)
        self._process.wait()

    def restart(self, timeout_seconds: float = 60) -> None:
        """Stop in order and start again."""
        self.stop()
        self.start(timeout_seconds)

    def freeze(self) -> None:
        """Suspend it and its children: connections stay open, nothing answers."""
        self._signal_family(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server go on."""
        self._signal_family(signal.SIGCONT)

    def log_tail(self) -> str:
        """The last lines of its log."""
        try:
            content = self.log.read_bytes()[-_TAIL_BYTES:].decode(errors="replace")
        except FileNotFoundError:
            return ""
        return content.strip()

    def _signal_family(self, number: signal.Signals) -> None:
        if self._process is None or not self.running:
            return
        for pid in family(self._process.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def _failure(self, what: str) -> DevstackError:
        return DevstackError(
            f"{self.name} {what}. The end of {self.log}:\n{self.log_tail()}\n",
            remedy=f"Mend what the log names; `{command('reset', self.home.parent)}` deletes the old data for a new start.",
        )
