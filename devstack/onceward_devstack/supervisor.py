"""The process that owns a stack: it starts the servers, writes down what runs, and ends them when it is told to."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from onceward_devstack.places import command
from onceward_devstack.requirements import writing
from onceward_devstack.stack import Stack
from onceward_devstack.state import StackState, clear_state, is_held, read_state, write_state
from onceward_schemas.errors import DevstackError, OncewardError

_LOG = "supervisor.log"
_POLL_SECONDS = 0.05
_STOP_SECONDS = 60.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Watch = Callable[[StackState], None]


class Supervisor:
    """Runs one stack in this process and keeps its state file true."""

    def __init__(
        self, home: Path, name: str, ports: Mapping[str, int] | None = None, watch: Watch | None = None
    ) -> None:
        self._home = home
        self._ports = ports
        self._watch = watch
        self._state = StackState(name=name, phase="starting", pid=os.getpid())

    def run(self) -> None:
        """Start the stack, wait for SIGTERM, SIGINT or SIGHUP, stop it.

        Raises: DevstackError when it cannot be started; the state file keeps the reason.
        """
        with _told_by_signals(), writing(self._home):
            self._home.mkdir(parents=True, exist_ok=True)
            try:
                stack = Stack(self._home, ports=self._ports)
            except OncewardError as error:
                if not is_held(self._home):  # else the state belongs to the process that holds the folder
                    self._tell(_failed(self._state, error))
                raise
            try:
                self._own(stack)
            finally:
                stack.close()

    def _own(self, stack: Stack) -> None:
        self._tell(self._state)
        try:
            stack.start(lambda server: self._tell(self._state.with_service(server)))
            self._tell(replace(self._state, phase="running"))
            threading.Event().wait()
        except OncewardError as error:
            self._tell(_failed(self._state, error))
            raise
        finally:
            if self._state.phase != "failed":
                stack.stop()
                self._tell(replace(self._state, phase="stopped", services=()))

    def _tell(self, state: StackState) -> None:
        self._state = state
        write_state(self._home, state)
        if self._watch is not None:
            self._watch(state)


def start_detached(
    home: Path, name: str, ports: Mapping[str, int], *, watch: Watch, timeout_seconds: float = 120
) -> StackState:
    """Start a supervisor that outlives this process and wait until its servers answer.

    Raises: DevstackError when it fails or takes longer. When interrupted, the supervisor is ended again.
    """
    with writing(home):
        home.mkdir(parents=True, exist_ok=True)
        clear_state(home)
        log = home / _LOG
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "onceward_devstack.supervisor", str(home), name, json.dumps(dict(ports))],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=home,
                start_new_session=True,
            )
    try:
        state = _await_start(process, home, watch, timeout_seconds)
    except BaseException:
        process.terminate()
        raise
    if state.phase == "failed":
        raise DevstackError(state.error, remedy=state.remedy)
    if state.phase != "running":
        last_words = log.read_text(errors="replace").strip().rpartition("\n")[2]
        raise DevstackError(
            f"The supervisor ended with code {process.returncode}: {last_words}", remedy=f"The whole of it is in {log}."
        )
    return state


def wait_while_starting(home: Path, watch: Watch, timeout_seconds: float = 120) -> StackState:
    """The state once no other process is busy starting the stack."""
    deadline = time.monotonic() + timeout_seconds
    while (state := read_state(home)).phase == "starting" and time.monotonic() < deadline:
        watch(state)
        time.sleep(_POLL_SECONDS)
    return state


def end(home: Path, timeout_seconds: float = _STOP_SECONDS) -> bool:
    """End the stack's supervisor, and with it the servers; by force after the time-out. False when nothing ran."""
    state = read_state(home)
    if state.phase not in ("starting", "running") or state.pid is None:
        return False
    for number, patience in ((signal.SIGTERM, timeout_seconds), (signal.SIGKILL, 5.0)):
        try:
            os.kill(state.pid, number)
        except ProcessLookupError:
            return True
        if _wait_until_free(home, patience):
            return True
    raise DevstackError(f"Process {state.pid} does not end.", remedy=f"See {home / _LOG}.")


def _wait_until_free(home: Path, patience_seconds: float) -> bool:
    deadline = time.monotonic() + patience_seconds
    while is_held(home):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _await_start(process: subprocess.Popen[bytes], home: Path, watch: Watch, timeout_seconds: float) -> StackState:
    deadline = time.monotonic() + timeout_seconds
    while True:
        ended = process.poll() is not None  # asked first: what it wrote before it ended is then read
        state = read_state(home)
        watch(state)
        if ended or state.phase in ("running", "failed"):
            return state
        if time.monotonic() > deadline:
            raise DevstackError(
                f"The services did not answer within {timeout_seconds:g} s.", remedy=f"See `{command('logs', home)}`."
            )
        time.sleep(_POLL_SECONDS)


def _failed(state: StackState, error: OncewardError) -> StackState:
    return replace(state, phase="failed", services=(), error=error.message, remedy=error.remedy)


class _ToldToEnd(BaseException):
    """A signal asked this process to end."""


@contextmanager
def _told_by_signals() -> Iterator[None]:
    """Leave the block, by way of its clean-up, at the first signal; later ones do not disturb the clean-up."""

    def leave(number: int, frame: FrameType | None) -> None:
        for ignored in _SIGNALS:
            signal.signal(ignored, signal.SIG_IGN)
        raise _ToldToEnd

    before = {number: signal.signal(number, leave) for number in _SIGNALS}
    try:
        yield
    except _ToldToEnd:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> None:
    """`python -m onceward_devstack.supervisor HOME NAME PORTS`, as start_detached calls it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("home", type=Path)
    parser.add_argument("name")
    parser.add_argument("ports", type=json.loads)
    arguments = parser.parse_args()
    try:
        Supervisor(arguments.home, arguments.name, arguments.ports).run()
    except OncewardError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
