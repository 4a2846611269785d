"""Worker processes under attack, a steady flow of commands, and a checker that reads nothing but the effects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

from tests.support.chaos_worker import EFFECT, application, is_rejected
from tests.support.commands import Increment
from tests.support.consumers import Group, app_name, group_of
from tests.support.services import ROOT, Services

KEYS = 59
"""Prime, so that failures fall on all keys alike."""


class Attack:
    """A group whose workers are processes."""

    def __init__(self, services: Services, dsn: str, prefix: str, mode: str, seconds: float, logs: Path) -> None:
        self.name = app_name(prefix)
        self.group: Group = group_of(application(prefix, self.name, mode), services, dsn)
        self.group.query(EFFECT)
        self._arguments = [prefix, self.name, mode, str(seconds)]
        self._environment = os.environ | {
            "ONCEWARD_DATABASE_URL": dsn,
            "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS": services.bootstrap,
            "ONCEWARD_REGISTRY_URL": services.registry_url,
            "ONCEWARD_LOG_LEVEL": "warning",
        }
        self._logs = logs
        self.processes: list[subprocess.Popen[bytes]] = []
        self.published: dict[UUID, tuple[str, int]] = {}
        self._next = 0

    def start(self) -> subprocess.Popen[bytes]:
        """One more worker."""
        with (self._logs / f"worker-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.chaos_worker", *self._arguments],
                env=self._environment,
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def running(self) -> list[subprocess.Popen[bytes]]:
        """Those that live."""
        return [process for process in self.processes if process.poll() is None]

    def publish(self, count: int) -> None:
        """So many more commands, over all keys in turn."""
        commands = [Increment(counter=f"k{n % KEYS}", amount=n) for n in range(self._next, self._next + count)]
        self._next += count
        for identity, command in zip(self.group.publish(commands), commands, strict=True):
            self.published[identity] = (command.counter, command.amount)

    @contextmanager
    def flowing(self, a_second: int) -> Iterator[None]:
        """Publish steadily for the time of the block."""
        over = threading.Event()

        def flow() -> None:
            while not over.wait(0.1):
                self.publish(a_second // 10)

        thread = threading.Thread(target=flow)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def end(self) -> None:
        """Kill whatever lives."""
        for process in self.running():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def finished(self) -> bool:
        """Whether every command that was published has ended, and nothing is left anywhere."""
        ended = self.group.count("select count(*) from onceward.ledger where state in ('done', 'dead')")
        return ended == len(self.published) and self.group.settled()

    def problems(self, *, once: bool = True) -> list[str]:
        """What the effects say: lost, doubled and reordered commands.

        Without `once` repeats are allowed and only the first of each counts, as at a gateway with idempotency keys.
        """
        found: list[str] = []
        rows = self.group.query("select id, counter, amount from effect order by seq")
        wanted = {i for i, (_, amount) in self.published.items() if not is_rejected(amount)}
        seen: dict[UUID, int] = {}
        latest: dict[str, int] = {}
        for identity, counter, amount in rows:
            seen[identity] = seen.get(identity, 0) + 1
            if seen[identity] > 1 and not once:
                continue
            if amount < latest.get(counter, -1):
                found.append(f"{counter}: {amount} after {latest[counter]}")
            latest[counter] = max(amount, latest.get(counter, -1))
        found += [f"lost {self.published[i]}" for i in wanted - seen.keys()]
        found += [f"not ours: {i}" for i in seen.keys() - wanted]
        if once:
            found += [f"{count} times: {self.published[i]}" for i, count in seen.items() if count > 1]
        return found


def wait_until(moment: float) -> None:
    """Sleep until a monotonic instant: the rhythm of an attack."""
    time.sleep(max(0.0, moment - time.monotonic()))
