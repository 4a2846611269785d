"""Starts child processes that end with this one, however it ends.

Linux sends the death signal when the *thread* that started a child ends, so every child is started by one thread that
lives as long as the process. A test or a pool's worker may then start and restart servers as it likes.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

# Runs between fork and exec as a program of its own: code run in a forked copy of a process with threads may dead-lock.
# The user is changed before the death signal is set, because that clears it, and after all imports, because the other
# user may have no way into Python's folder.
_SHIM = """
import ctypes, os, sys
parent, death, user, program, *arguments = sys.argv[1:]
if user:
    os.setgroups([])
    os.setgid(int(user))
    os.setuid(int(user))
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(death))
    if os.getppid() != int(parent):
        os._exit(1)
os.execv(program, [program, *arguments])
"""
# A setting of the user's shell must not reach the servers.
_FOREIGN = ("APICURIO_", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "KAFKA_", "ONCEWARD_", "PG", "QUARKUS_")

Process = subprocess.Popen[bytes]


class _Launcher:
    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Process], Future[Process]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="onceward-devstack-launcher", daemon=True).start()

    def _run(self) -> None:
        while True:
            job, future = self._jobs.get()
            try:
                future.set_result(job())
            except BaseException as error:
                future.set_exception(error)

    def launch(self, job: Callable[[], Process]) -> Process:
        future: Future[Process] = Future()
        self._jobs.put((job, future))
        return future.result()


_lock = threading.Lock()
_launcher: tuple[int, _Launcher] | None = None


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server: ours without other programs' settings, and `extra`."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)} | dict(extra)


def launch(
    argv: Sequence[str | Path],
    *,
    log: Path,
    folder: Path,
    death_signal: int,
    environment: Mapping[str, str] | None = None,
    user: int | None = None,
) -> Process:
    """Start a program in a session of its own, its output added to `log`. It gets `death_signal` when we end."""
    shim = [sys.executable, "-I", "-S", "-c", _SHIM, os.getpid(), death_signal, "" if user is None else user]

    def job() -> Process:
        with log.open("ab") as output:
            return subprocess.Popen(
                [str(part) for part in (*shim, *argv)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=clean_environment(environment or {}),
                cwd=folder,
                start_new_session=True,
            )

    return _current().launch(job)


def _current() -> _Launcher:
    """The launcher of this process; a fork has none of its parent's threads and gets its own."""
    global _launcher
    with _lock:
        if _launcher is None or _launcher[0] != os.getpid():
            _launcher = (os.getpid(), _Launcher())
        return _launcher[1]
