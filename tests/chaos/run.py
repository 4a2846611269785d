"""Runs one trial from start to proof: write under attack, let everything drain within a stated time, check, tell."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

import psycopg
from confluent_kafka import KafkaException

from tests.chaos.attacks import Attacks, rebalances
from tests.chaos.checker import Finding
from tests.chaos.fleet import Member
from tests.chaos.plan import Plan
from tests.chaos.servers import Servers
from tests.chaos.story import stories
from tests.chaos.trial import Trial
from tests.support.databases import fresh_database

DRAIN_SECONDS: Final = 90.0
"""How long after the last attack everything has to be finished: frozen sessions, leases and retries run out in it."""
_STORIES: Final = 5
_LINE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """How a trial went."""

    plan: Plan
    published: int = 0
    effects: int = 0
    dead: int = 0
    waiting: int = 0
    seconds: float = 0.0
    drained_in: float | None = None
    attacks: Counter[str] = field(default_factory=Counter)
    tracebacks: int = 0
    problems: list[Finding] = field(default_factory=list)

    def row(self) -> tuple[str, ...]:
        """For the table."""
        kinds = Counter(problem.kind for problem in self.problems)
        verdict = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "ok"
        drained = "never" if self.drained_in is None else f"{self.drained_in:.0f} s"
        counts = (self.published, self.effects, self.dead, sum(self.attacks.values()), self.tracebacks)
        return str(self.plan), *map(str, counts), f"{self.seconds:.0f} s", drained, verdict


COLUMNS: Final = ("trial", "published", "effects", "dead", "attacks", "tracebacks", "took", "drained in", "verdict")


class Line:
    """One line that tells where the trial is, written over and over; a line a quarter minute where no terminal is."""

    def __init__(self, trial: Trial, attacks: Attacks) -> None:
        self._trial = trial
        self._attacks = attacks
        self._at = 0.0
        self._terminal = sys.stderr.isatty()

    def __call__(self) -> None:
        if time.monotonic() < self._at:
            return
        self._at = time.monotonic() + (_LINE_SECONDS if self._terminal else 15.0)
        with suppress(psycopg.Error):
            ended, left = self._trial.ended(), self._trial.under_way()
            rest = " ".join(f"{name} {count}" for name, count in left.items())
            text = f"{self._trial.plan}: {ended}/{self._trial.writer.written} ended, {rest or 'nothing left'}"
            text += f", {len(self._trial.fleet.running())} workers, {sum(self._attacks.counts.values())} attacks"
            end = "\x1b[K\r" if self._terminal else "\n"
            print(f"{time.strftime('%T')} {text}, last: {self._attacks.last}", end=end, file=sys.stderr, flush=True)


def run(plan: Plan, servers: Servers, logs: Path, *, only: frozenset[str] = frozenset()) -> Report:
    """One trial on servers that may be restarted, in a database and on topics of its own."""
    logs.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    prefix = f"{plan.mode}-{plan.order}-{plan.seed}."
    with fresh_database(servers.stack.postgres.dsn) as dsn:
        trial = Trial(plan, servers.services, dsn, prefix, logs, doors=servers.doors)
        attacks = Attacks(trial, servers.stack, only=only)
        line = Line(trial, attacks)
        try:
            trial.fleet.replenish(plan.workers, 2)
            with trial.writer.flowing(plan.commands / plan.seconds, plan.commands), rebalances(trial) as visits:
                attacks.run(plan.seconds, line)
                until = time.monotonic() + plan.seconds
                while trial.writer.written < plan.commands and time.monotonic() < until:
                    line()
                    time.sleep(0.1)
            drained_in = _drain(trial, line)
            late = trial.fleet.leave()
            return _report(trial, attacks.counts + visits, drained_in, late, time.monotonic() - started)
        finally:
            trial.fleet.end()


def _drain(trial: Trial, line: Line) -> float | None:
    """Seconds until nothing was left; None where that was not reached. A strict group's dead letters are decided last."""
    started = decided = time.monotonic()
    while time.monotonic() - decided < DRAIN_SECONDS:
        line()
        trial.fleet.replenish(trial.plan.workers, 1)
        with suppress(psycopg.Error, KafkaException):
            if trial.drained():
                if trial.plan.order != "strict" or not trial.discard():
                    return time.monotonic() - started
                decided = time.monotonic()
        time.sleep(0.3)
    return None


def _report(trial: Trial, counts: Counter[str], drained_in: float | None, late: list[Member], seconds: float) -> Report:
    evidence = trial.evidence()
    problems = trial.problems(evidence)
    if drained_in is None:
        problems.append(Finding("stuck", f"after {DRAIN_SECONDS:.0f} s: {trial.under_way()}, lag {trial.lag()}"))
    if late:
        problems.append(Finding("undrained", f"{len(late)} did not end within 30 s of SIGTERM"))
    told = {problem.id: problem for problem in problems if problem.id is not None}
    chosen = list(told)[:_STORIES] or ([] if drained_in is not None else _unfinished(trial))
    for problem in problems[:20]:
        print(f"  {problem}")
    for text in stories(trial, evidence, chosen):
        print(text)
    return Report(
        trial.plan,
        len(evidence.published),
        len(evidence.effects),
        len(evidence.deaths),
        trial.waiting(evidence),
        seconds,
        drained_in,
        counts,
        len(trial.fleet.tracebacks()),
        problems,
    )


def _unfinished(trial: Trial) -> list[UUID]:
    """Some that never ended, the oldest first."""
    statement = (
        "select id from chaos.published p where not exists (select from onceward.ledger l where l.command_id = p.id"
        " and l.consumer_group = %s and l.state in ('done', 'dead', 'discarded')) order by id limit %s"
    )
    return [row[0] for row in trial.group.query(statement, trial.stage.group, _STORIES)]
