"""The lifecycle of a loop, and of those that run in one process."""

from __future__ import annotations

import signal
import threading
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
