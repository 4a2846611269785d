"""The lifecycle of a loop, and of the process that runs several."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from onceward_runtime.service import Loop, Mortal, run_until_signal


def quiet(loop: Loop) -> None:
    while not loop.wait(10):
        pass


def test_a_loop_stops_when_asked_and_stopping_twice_is_fine() -> None:
    loop = Loop("quiet", quiet)
    loop.stop()
    assert not loop.ended
    loop = Loop("quiet", quiet)
    loop.start()
    loop.start()
    assert loop.alive()
    assert loop.ready()
    loop.stop()
    loop.stop()
    assert loop.alive()
    assert not loop.ready()
    assert not loop.ended


def test_a_loop_keeps_what_it_raised() -> None:
    def broken(loop: Loop) -> None:
        raise ValueError("broken")

    loop = Loop("broken", broken)
    loop.start()
    loop._thread.join(5)  # type: ignore[union-attr]
    assert isinstance(loop, Mortal)
    assert loop.ended
    assert not loop.alive()
    assert isinstance(loop.error, ValueError)


def test_a_loop_that_makes_no_progress_is_not_alive(capsys: pytest.CaptureFixture[str]) -> None:
    released, waiting = threading.Event(), threading.Event()

    def stuck(loop: Loop) -> None:
        waiting.set()
        released.wait()

    loop = Loop("stuck", stuck, stall=timedelta(0), drain=timedelta(seconds=0.01))
    loop.start()
    assert waiting.wait(5)
    assert not loop.alive()
    loop.stop()
    assert "still running after the drain time-out" in capsys.readouterr().out
    released.set()


def test_a_service_that_dies_ends_the_process_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    order: list[str] = []

    def dying(loop: Loop) -> None:
        raise ValueError("broken")

    def tracked(name: str) -> Loop:
        def body(loop: Loop) -> None:
            quiet(loop)
            order.append(name)

        return Loop(name, body)

    assert run_until_signal([tracked("first"), tracked("second"), Loop("dying", dying)]) == 1
    assert order == ["second", "first"]
    assert "ValueError: broken" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_service_that_cannot_start_stops_those_before_it() -> None:
    loop = Loop("quiet", quiet)

    class Unable(Loop):
        def start(self) -> None:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        run_until_signal([loop, Unable("unable", quiet)])
    assert loop.stopping


def test_one_that_cannot_stop_does_not_keep_the_others_running() -> None:
    loop = Loop("quiet", quiet)

    class Stubborn(Loop):
        def stop(self) -> None:
            raise RuntimeError("no")

    ending = Loop("ending", lambda loop: None)
    assert run_until_signal([loop, Stubborn("stubborn", quiet), ending]) == 1
    assert loop.stopping


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
