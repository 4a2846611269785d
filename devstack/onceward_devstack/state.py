"""What is known of a stack from outside its process: where its folder is, whether it runs, what it wrote about itself."""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Literal

from onceward_devstack.places import command
from onceward_devstack.processes import memory_mib, start_ticks
from onceward_devstack.server import Server
from onceward_schemas.errors import DevstackError

Phase = Literal["starting", "running", "failed", "stopped"]

_FILE = "state.json"
_LOCK = "lock"
_LOCK_SECONDS = 0.3


@dataclass(frozen=True, kw_only=True)
class ServiceState:
    """One server as its stack wrote it down."""

    name: str
    address: str
    version: str
    pid: int
    started: int | None
    """Ticks since boot; tells the process from a later one with the same pid."""
    log: str

    @property
    def alive(self) -> bool:
        return self.started == start_ticks(self.pid) if self.started is not None else _exists(self.pid)

    @property
    def memory_mib(self) -> int | None:
        return memory_mib(self.pid) if self.alive else None


@dataclass(frozen=True, kw_only=True)
class StackState:
    """A stack as it wrote itself down; `read_state` corrects the phase of one that died."""

    name: str
    phase: Phase
    pid: int | None = None
    services: tuple[ServiceState, ...] = ()
    error: str | None = None
    remedy: str | None = None

    @property
    def healthy(self) -> bool:
        return self.phase == "running" and all(service.alive for service in self.services)

    def address(self, service: str) -> str:
        return next(found.address for found in self.services if found.name == service)

    def with_service(self, server: Server) -> StackState:
        """The state with one more server that answers."""
        added = ServiceState(
            name=server.name,
            address=server.address,
            version=server.version,
            pid=server.pid,
            started=start_ticks(server.pid),
            log=str(server.log),
        )
        others = tuple(service for service in self.services if service.name != server.name)
        return replace(self, services=tuple(sorted((*others, added), key=lambda service: service.name)))


def write_state(home: Path, state: StackState) -> None:
    """Replace what the stack says about itself; a reader sees the old or the new, never a half."""
    staging = home / f"{_FILE}.new"
    staging.write_text(json.dumps(asdict(state), indent=2) + "\n")
    staging.replace(home / _FILE)


def read_state(home: Path) -> StackState:
    """The stack's own words, with the phase "stopped" when nothing holds its folder."""
    try:
        content = json.loads((home / _FILE).read_text())
        services = tuple(ServiceState(**service) for service in content.pop("services"))
        state = StackState(services=services, **content)
    except (OSError, ValueError, TypeError, KeyError):
        state = StackState(name=home.name, phase="stopped")
    if state.phase in ("starting", "running") and not is_held(home):
        return replace(state, phase="stopped")
    return state


def clear_state(home: Path) -> None:
    """Forget what an earlier run wrote."""
    (home / _FILE).unlink(missing_ok=True)


def lock_folder(home: Path) -> IO[str]:
    """Hold the folder until the file is closed or the process ends.

    Raises: DevstackError when another process holds it.
    """
    file = (home / _LOCK).open("a")
    deadline = time.monotonic() + _LOCK_SECONDS  # is_held holds it for an instant
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.02)
                continue
            file.close()
            raise DevstackError(
                f"Another process runs a stack in {home}.",
                remedy=f"Use that one (`{command('status', home)}`), end it (`{command('down', home)}`), "
                "or take another --name.",
            ) from None


def is_stack(home: Path) -> bool:
    """Whether the folder was made for a stack."""
    return (home / _LOCK).is_file()


def is_held(home: Path) -> bool:
    """Whether a living process holds the folder."""
    try:
        file = (home / _LOCK).open()
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
