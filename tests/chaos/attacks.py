"""What is done to a trial, at random from a seed and all the time; each attack undoes itself after a while."""

from __future__ import annotations

import heapq
import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg
from confluent_kafka import Consumer, KafkaException

from onceward_devstack.processes import family
from onceward_devstack.server import Server
from onceward_devstack.stack import Stack
from tests.chaos.fleet import Member
from tests.chaos.trial import Trial
from tests.chaos.worker import FROZEN_SECONDS

_WEIGHTS: Final = {
    "kill worker": 6,
    "freeze worker": 4,
    "partition": 6,
    "cut": 4,
    "leave": 3,
    "kill relay": 3,
    "freeze relay": 1,
    "kill cell": 1,
    "restart postgres": 2,
    "restart kafka": 2,
}
_REBALANCE_SECONDS: Final = 1.0
_RELAYS: Final = 2


class Attacks:
    """Attacks on one trial, from one thread; `counts` says what was done."""

    def __init__(self, trial: Trial, stack: Stack | None, *, only: frozenset[str] = frozenset()) -> None:
        self._trial = trial
        self._fleet = trial.fleet
        self._stack = stack
        self._chance = random.Random(f"attacks {trial.plan}")
        self._later: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        weights = {name: weight for name, weight in _WEIGHTS.items() if not only or name in only}
        self._weights = weights if stack is not None else {n: w for n, w in weights.items() if "restart" not in n}
        self._actions: dict[str, Callable[[], bool]] = {
            "kill worker": self._kill_worker,
            "freeze worker": lambda: self._freeze("worker"),
            "partition": self._partition,
            "cut": self._cut,
            "leave": self._leave,
            "kill relay": self._kill_relay,
            "freeze relay": lambda: self._freeze("relay"),
            "kill cell": self._kill_cell,
            "restart postgres": self._restart_postgres,
            "restart kafka": self._restart_kafka,
        }
        self.counts: Counter[str] = Counter()
        self.last = ""

    def run(self, seconds: float, tell: Callable[[], None] = lambda: None) -> None:
        """Attack for so long; everything is undone on return, and the fleet whole."""
        until = time.monotonic() + seconds
        attack_at = time.monotonic() + 1.0
        while time.monotonic() < until:
            self._undo()
            self._fleet.replenish(self._trial.plan.workers, _RELAYS)
            if time.monotonic() >= attack_at:
                self._attack()
                attack_at = time.monotonic() + self._chance.uniform(0.3, 2.5)
            if self._trial.plan.order == "strict" and self._chance.random() < 0.02:
                with suppress(psycopg.Error):
                    self._trial.discard()
            tell()
            time.sleep(0.1)
        self._undo(everything=True)
        self._fleet.replenish(self._trial.plan.workers, _RELAYS)

    def _attack(self) -> None:
        if not self._weights:
            return
        [name] = self._chance.choices(list(self._weights), list(self._weights.values()))
        if self._actions[name]():
            self.counts[name] += 1
            self.last = name

    def _undo(self, *, everything: bool = False) -> None:
        while self._later and (everything or self._later[0][0] <= time.monotonic()):
            heapq.heappop(self._later)[2]()

    def _in(self, seconds: float, undo: Callable[[], object]) -> None:
        heapq.heappush(self._later, (time.monotonic() + seconds, next(self._numbers), undo))

    def _one(self, members: list[Member]) -> Member | None:
        return self._chance.choice(members) if members else None

    def _kill_worker(self) -> bool:
        member = self._one(self._fleet.running())
        if member is not None:
            member.kill()
        return member is not None

    def _kill_relay(self) -> bool:
        member = self._one(self._fleet.running("relay"))
        if member is not None:
            member.kill()
        return member is not None

    def _kill_cell(self) -> bool:
        """A child process in which handlers run, where there are some."""
        member = self._one(self._fleet.staying())
        children = [] if member is None else family(member.pid)[1:]
        if not children:
            return False
        with suppress(ProcessLookupError):
            os.kill(self._chance.choice(children), signal.SIGKILL)
        return True

    def _freeze(self, role: str) -> bool:
        """Longer than every time-out; two at a time at most."""
        if sum(member.frozen for member in self._fleet.members if member.running) >= 2:
            return False
        member = self._one(self._fleet.staying("relay" if role == "relay" else "worker"))
        if member is None:
            return False
        member.freeze()
        self._in(self._chance.uniform(FROZEN_SECONDS, FROZEN_SECONDS + 5), member.thaw)
        return True

    def _partition(self) -> bool:
        """Nothing passes between a process and Kafka, PostgreSQL, or both, now for a moment and now beyond all time-outs."""
        member = self._one([m for m in self._fleet.staying() + self._fleet.staying("relay") if m.door is not None])
        if member is None or member.door is None:
            return False
        proxies = self._chance.choice(
            ([member.door.kafka], [member.door.postgres], [member.door.kafka, member.door.postgres])
        )
        for proxy in proxies:
            proxy.stall()
        self._in(self._chance.choice((1.0, 4.0, FROZEN_SECONDS)), member.door.resume)
        return True

    def _cut(self) -> bool:
        member = self._one([m for m in self._fleet.staying() + self._fleet.staying("relay") if m.door is not None])
        if member is None or member.door is None:
            return False
        self._chance.choice((member.door.kafka, member.door.postgres)).cut()
        self._in(self._chance.choice((0.0, 0.5, 3.0)), member.door.resume)
        return True

    def _leave(self) -> bool:
        member = self._one(self._fleet.staying())
        if member is not None:
            member.leave()
        return member is not None

    def _restart_postgres(self) -> bool:
        """In order, which ends all sessions, or as after a crash."""
        assert self._stack is not None
        return self._restart(self._stack.postgres)

    def _restart_kafka(self) -> bool:
        assert self._stack is not None
        return self._restart(self._stack.kafka)

    def _restart(self, server: Server) -> bool:
        if self._chance.random() < 0.5:
            server.stop()
        else:
            server.kill()
        time.sleep(self._chance.uniform(0.0, 2.0))
        server.start()
        return True


@contextmanager
def rebalances(trial: Trial, every_seconds: float = _REBALANCE_SECONDS) -> Iterator[Counter[str]]:
    """A member that joins, is given partitions, and leaves, again and again: each time partitions move there and back.

    It takes records and commits nothing, as a worker that is killed at once.
    """
    over = threading.Event()
    counts: Counter[str] = Counter()

    def run() -> None:
        while not over.wait(every_seconds / 2):
            with suppress(KafkaException):
                _visit(trial, every_seconds / 2, over, counts)

    thread = threading.Thread(target=run, name="chaos-rebalances", daemon=True)
    thread.start()
    try:
        yield counts
    finally:
        over.set()
        thread.join(30)


def _visit(trial: Trial, seconds: float, over: threading.Event, counts: Counter[str]) -> None:
    guest = Consumer(
        trial.group.settings.kafka(
            **{
                "group.id": trial.stage.group,
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "log_level": 0,
            }
        )
    )
    given = threading.Event()
    try:
        names = trial.topics(list(guest.list_topics(timeout=5).topics))
        guest.subscribe(names, on_assign=lambda *_: given.set())
        until = time.monotonic() + 5
        while not over.is_set() and not given.is_set() and time.monotonic() < until:
            guest.poll(0.1)
        until = time.monotonic() + seconds
        while not over.is_set() and time.monotonic() < until:
            guest.poll(0.05)
        counts["rebalances"] += given.is_set()
    finally:
        guest.close()
