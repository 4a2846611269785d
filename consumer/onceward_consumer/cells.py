"""Cells: child processes that run handlers for a worker, so that one that dies, or must be ended, takes nobody with it.

A cell is a fresh interpreter that has imported the application by name; it is never forked. It ends with its worker, also
when that is killed. Whoever starts one is a thread that outlives it: Linux ends a child with the thread that made it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from multiprocessing.connection import Pipe
from typing import Any, Final

from onceward_consumer.cell_wire import READY, TAKEN, Broken, Calling, Knowledge, Setup, Slate, pack, unpack
from onceward_consumer.failures import OverrunError
from onceward_consumer.handlers import Handler
from onceward_consumer.items import Engine
from onceward_consumer.overruns import Stopwatch, limit_of, too_long
from onceward_runtime import events, log
from onceward_schemas.errors import AppError

_START_SECONDS: Final = 60.0
_WARY_SECONDS: Final = 600.0
_LOOK_SECONDS: Final = 0.1
_GRACE_SECONDS: Final = 1.0
"""An asynchronous call is cancelled in its cell at its limit; if that does not end it, the cell is ended so much later."""
_END_SECONDS: Final = 2.0


class CellDiedError(Exception):
    """A cell is gone. `taken` says that it had the request in hand; `calling` what it called then."""

    def __init__(self, how: str, taken: bool, calling: Calling | None) -> None:
        self.how = how
        self.taken = taken
        self.calling = calling
        super().__init__(f"A cell died: {how}.")


class CellOverranError(Exception):
    """A cell was ended, since the call that it was in took longer than it may."""

    def __init__(self, calling: Calling) -> None:
        self.calling = calling
        super().__init__("A cell was ended, for its call took too long.")


class CellUnavailableError(Exception):
    """No cell can be started; the message says why."""


class Cells:
    """Starts cells for one application, and knows all that live."""

    def __init__(self, setup: Setup | None, engine: Engine) -> None:
        """Without a `setup` the application has no name to be imported by, and there are no cells."""
        self._setup = setup
        self._engine = engine
        self._types = sorted(engine.handlers)
        self._limits = [_limit(engine.handlers[name], engine) for name in self._types]
        self._lock = threading.Lock()
        self._all: set[Cell] = set()
        self._closed = False
        self._wary_until = 0.0
        self._why = "" if setup is not None else "The worker was not told by which name to import the application."
        self._told = False

    @property
    def possible(self) -> bool:
        """Whether there may be cells: nothing has shown yet that there cannot."""
        return not self._why

    def be_wary(self, seconds: float = _WARY_SECONDS) -> None:
        """A worker of the group has died: for so long parked followers are run in cells as well."""
        self._wary_until = max(self._wary_until, time.monotonic() + seconds)

    @property
    def wary(self) -> bool:
        """Whether one has died lately, and there may be cells."""
        return self.possible and time.monotonic() < self._wary_until

    def told_possible(self) -> bool:
        """The same, where one has died and they are wanted; if there cannot be any, that is told."""
        if not self.possible:
            self.give_up(self._why)
        self.be_wary()
        return self.possible

    @property
    def closed(self) -> bool:
        """Whether the worker has ended them all."""
        return self._closed

    def check(self) -> None:
        """See whether there can be cells, if a handler needs them.

        Raises: AppError.
        """
        wanting = [handler.type for handler in self._engine.handlers.values() if handler.executor == "process"]
        if not wanting:
            return
        remedy = 'Keep it in a module of its own, and name it: `onceward worker module:app`, or Worker(..., cells="module:app").'
        try:
            self.start().close()
        except CellUnavailableError as error:
            raise AppError(
                f'{wanting[0]} has executor="process", and a child process cannot import the app: {error}',
                remedy=remedy,
            ) from error

    def start(self) -> Cell:
        """A new cell. In a thread that outlives it.

        Raises: CellUnavailableError.
        """
        if self._setup is None or self._closed:
            raise CellUnavailableError(self._why or "The worker ends.")
        cell = Cell(self._setup, self._types, self._limits, self._engine.group)
        with self._lock:
            self._all = {each for each in self._all if each.alive}
            self._all.add(cell)
        try:
            cell.wait_until_ready(_START_SECONDS)
        except BaseException:
            cell.kill()
            cell.close()
            raise
        if self._closed:
            cell.kill()
            cell.close()
            raise CellUnavailableError("The worker ends.")
        return cell

    def give_up(self, why: str) -> None:
        """There cannot be any: say so once. What would be run in one is run in a thread."""
        self._why = why
        if not self._told:
            self._told = True
            log.emit(events.CELLS_UNAVAILABLE, group=self._engine.group, error=why)

    def note_overrun(self, calling: Calling) -> None:
        """A call was ended with its cell: its attempt has failed."""
        handler = self._engine.handlers[self._types[calling.handler]]
        error = too_long(handler) if handler.mode == "external" else limit_of(handler, self._engine)[1]
        self._engine.given_up[calling.command_id] = calling.attempt, error

    def knowledge(self) -> Knowledge:
        """What a request carries."""
        given_up = dict(self._engine.given_up)
        overran = {
            identity: (attempt, error.reason, str(error))
            for identity, (attempt, error) in given_up.items()
            if isinstance(error, OverrunError)
        }
        return Knowledge(self._engine.clock.reading(), dict(self._engine.deaths.of), overran)

    def close(self) -> None:
        """End them all; what runs in them has not happened."""
        self._closed = True
        with self._lock:
            cells, self._all = self._all, set()
        for cell in cells:
            cell.kill()


class Cell:
    """One child process, and the pipe to it. It is asked by one thread at a time."""

    def __init__(self, setup: Setup, types: list[str], limits: list[float | None], group: str) -> None:
        self._types = types
        self._limits = limits
        self._group = group
        self._slate = Slate()
        self._pipe, far = Pipe()
        reading, self._life = os.pipe()
        self._lock = threading.Lock()
        self.ended_by_us = False
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "onceward_consumer.cell"),
                    *map(str, (far.fileno(), reading, self._slate.descriptor, os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(far.fileno(), reading, self._slate.descriptor),
                process_group=0,
            )
        except OSError as error:
            raise CellUnavailableError(f"{type(error).__name__}: {error}") from error
        finally:
            far.close()
            os.close(reading)
        with suppress(OSError):
            self._pipe.send_bytes(pack(setup))

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process lives."""
        with self._lock:
            return self._process.poll() is None

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until it has imported the application.

        Raises: CellUnavailableError.
        """
        try:
            found = (
                unpack(self._pipe.recv_bytes()) if self._pipe.poll(seconds) else Broken("It takes too long to start.")
            )
        except (EOFError, OSError):
            found = Broken(f"It died while it started: {self.how()}.")
        if found != READY:
            raise CellUnavailableError(found.error if isinstance(found, Broken) else "It says something unknown.")
        log.emit(events.CELL_STARTED, group=self._group, pid=self.pid)

    def ask(self, request: Any) -> Any:
        """Send a request and wait for what becomes of it.

        Raises: CellDiedError, CellOverranError: then the cell is gone, and what was not committed has not happened.
        """
        self._slate.wipe()
        taken = False
        watch = Stopwatch(_LOOK_SECONDS, time.perf_counter())
        try:
            self._pipe.send_bytes(pack(request))
            while True:
                if self._pipe.poll(_LOOK_SECONDS):
                    found = unpack(self._pipe.recv_bytes())
                    if found != TAKEN:
                        return found
                    taken = True
                now = time.perf_counter()
                watch.turned(now)
                self._check(watch, now)
        except (EOFError, OSError):
            raise self._died(taken) from None

    def _check(self, watch: Stopwatch, now: float) -> None:
        calling = self._slate.read()
        if calling is None:
            return
        limit = self._limits[calling.handler] if calling.handler < len(self._limits) else None
        if limit is None or watch.ran(calling.started, now) <= limit or self._slate.read() != calling:
            return
        self.kill()
        self._tell("overran", f"ended after {limit:g} s", calling)
        raise CellOverranError(calling)

    def _died(self, taken: bool) -> CellDiedError:
        how, calling = self.how(), self._slate.read()
        if not self.ended_by_us:
            self._tell("died", how, calling)
        return CellDiedError(how, taken and not self.ended_by_us, calling)

    def _tell(self, reason: str, error: str, calling: Calling | None) -> None:
        events.CELL_DEATHS.labels(self._group, reason).inc()
        log.emit(
            events.CELL_DIED,
            group=self._group,
            pid=self.pid,
            command_id=calling and calling.command_id,
            type=calling and self._types[calling.handler],
            reason=reason,
            error=error,
        )

    def how(self) -> str:
        """How the process ended, which it has, or is about to."""
        with self._lock:
            try:
                code = self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:  # it has closed its pipe, and lives on
                self._process.kill()
                code = self._process.wait()
        return _named(code)

    def close(self) -> None:
        """Let it go; it has nothing in hand."""
        self.ended_by_us = True
        self._pipe.close()
        os.close(self._life)
        with self._lock:
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._slate.close()

    def kill(self) -> None:
        """End it at once, from any thread."""
        self.ended_by_us = True
        with self._lock:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()


def _limit(handler: Handler, engine: Engine) -> float | None:
    if handler.mode != "external":
        limit = limit_of(handler, engine)[0]
    elif handler.max_runtime is not None:
        limit = handler.max_runtime.total_seconds()
    else:
        return None
    return limit + (_GRACE_SECONDS if handler.is_async else 0.0)


def _named(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
