"""The processes of a trial: workers and relays, started, killed, frozen, cut off, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onceward_devstack.launcher import launch
from tests.chaos.plan import Stage
from tests.chaos.servers import Door
from tests.support.services import ROOT, Services

Role = Literal["worker", "relay"]


@dataclass(eq=False, slots=True)
class Member:
    """One process."""

    name: str
    role: Role
    process: subprocess.Popen[bytes]
    log: Path
    door: Door | None
    frozen: bool = False
    leaving: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def leave(self) -> None:
        """SIGTERM: it drains."""
        self.leaving = True
        self.process.send_signal(signal.SIGTERM)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = True
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.frozen = False
        if self.running:
            self.process.send_signal(signal.SIGCONT)


class Fleet:
    """All processes of a trial; those with a free door go through it."""

    def __init__(self, stage: Stage, services: Services, dsn: str, logs: Path, doors: tuple[Door, ...] = ()) -> None:
        self._stage = stage
        self._dsn = dsn
        self._logs = logs
        self._doors = doors
        self._environment = {
            "ONCEWARD_DATABASE_URL": dsn,
            "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS": services.bootstrap,
            "ONCEWARD_REGISTRY_URL": services.registry_url,
            "ONCEWARD_SLOT": "chaos_" + dsn.rpartition("/")[2].replace("-", "_")[-40:],
            "ONCEWARD_LOG_LEVEL": os.environ.get("ONCEWARD_LOG_LEVEL", "warning"),
            "ONCEWARD_DRAIN_TIMEOUT": "10",
        }
        self.members: list[Member] = []

    def start_worker(self) -> Member:
        """One more worker."""
        return self._start("worker", "-m", "tests.chaos.worker", self._stage.to_text())

    def start_relay(self) -> Member:
        """One more relay."""
        return self._start("relay", "-m", "onceward_cli.main", "relay")

    def running(self, role: Role = "worker") -> list[Member]:
        """Those that live."""
        return [member for member in self.members if member.role == role and member.running]

    def staying(self, role: Role = "worker") -> list[Member]:
        """Those that live, are not frozen and were not told to leave."""
        return [member for member in self.running(role) if not member.frozen and not member.leaving]

    def replenish(self, workers: int, relays: int) -> None:
        """Start what is missing."""
        while len(self.staying()) < workers:
            self.start_worker()
        while len(self.staying("relay")) < relays:
            self.start_relay()

    def tracebacks(self) -> list[Member]:
        """Those whose log has a traceback: something that nobody has foreseen."""
        return [member for member in self.members if b"Traceback (most recent" in member.log.read_bytes()]

    def leave(self, seconds: float = 30) -> list[Member]:
        """Tell all to leave. Returns those that had to be killed."""
        for member in self.members:
            if member.running:
                member.thaw()
                member.leave()
        until = time.monotonic() + seconds
        late = []
        for member in self.members:
            try:
                member.process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.append(member)
                member.kill()
        return late

    def end(self) -> None:
        """Kill whatever lives."""
        for member in self.members:
            if member.running:
                with suppress(ProcessLookupError):
                    member.kill()

    def _start(self, role: Role, *arguments: str) -> Member:
        taken = {member.door for member in self.members if member.running}
        door = next((door for door in self._doors if door not in taken), None)
        if door is not None:
            door.resume()
        name = f"{role}-{sum(member.role == role for member in self.members)}"
        log = self._logs / f"{name}.log"
        process = launch(
            [sys.executable, *arguments],
            log=log,
            folder=ROOT,
            death_signal=signal.SIGKILL,
            environment=self._environment | (door.environment(self._dsn) if door is not None else {}),
        )
        member = Member(name, role, process, log, door)
        self.members.append(member)
        return member
