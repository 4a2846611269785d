"""The first signal drains a process, the second ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

PROCESS = """
    import sys, threading
    from onceward_runtime.service import Loop, run_until_signal
    def body(loop):
        print("running", flush=True)
        loop.wait(60)
        print("draining", flush=True)
        if sys.argv[1] == "slow":
            threading.Event().wait(60)
        print("drained", flush=True)
    sys.exit(run_until_signal([Loop("worker", body)]))
"""


@contextmanager
def process(mode: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", textwrap.dedent(PROCESS), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as started:
        watchdog = threading.Timer(20, started.kill)
        watchdog.start()
        yield started
        watchdog.cancel()


def read_until(started: subprocess.Popen[str], word: str) -> None:
    assert started.stdout is not None
    assert any(word in line for line in started.stdout), f"the process ended without {word!r}"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_exits_with_zero(number: signal.Signals) -> None:
    with process("quick") as started:
        read_until(started, "running")
        started.send_signal(number)
        read_until(started, "drained")
        assert started.wait(10) == 0


def test_a_second_signal_ends_at_once() -> None:
    with process("slow") as started:
        read_until(started, "running")
        started.send_signal(signal.SIGTERM)
        read_until(started, "draining")
        started.send_signal(signal.SIGTERM)
        assert started.wait(10) == -signal.SIGTERM
