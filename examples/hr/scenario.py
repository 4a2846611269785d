"""The scenario: prepare the services, press "run" twice, break things on the way, mend what failed, and check."""

from __future__ import annotations

import json
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import UUID

import psycopg
from sqlalchemy import create_engine

from examples.hr import checks, topics
from examples.hr.checks import Check, GatewayLog
from examples.hr.handlers import app
from examples.hr.press import Change, press_run
from examples.hr.processes import Program
from examples.hr.view import Traffic, View
from onceward_consumer import run_progress
from onceward_consumer.run_retry import retry_failed
from onceward_consumer.runs import Runs
from onceward_consumer.topics import apply as apply_topics
from onceward_devstack.ports import free_ports
from onceward_devstack.stack import Stack
from onceward_producer.default import codec_for
from onceward_producer.outbox import Outbox
from onceward_runtime import migrate
from onceward_runtime.settings import Settings, load
from onceward_schemas import registration
from onceward_schemas.avsc import load_folder
from onceward_schemas.errors import OncewardError
from onceward_schemas.registry import RegistryClient

SCHEMAS = Path(__file__).parent / "schemas"
TABLES = Path(__file__).parent / "tables.sql"
NAME = "reorganisation-2026-12"
BUSINESS_DATE = date(2026, 12, 1)
HEARTBEAT = timedelta(seconds=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How large, and how bad."""

    employees: int
    failing: int
    outage_seconds: float
    patience_seconds: float = 300

    @property
    def broken(self) -> frozenset[int]:
        """The employees without a mailbox: the same at every run of the demo."""
        return frozenset(random.Random(12).sample(range(1, self.employees + 1), self.failing))


class StuckError(OncewardError):
    """The scenario does not come to its end."""


class Scenario:
    """A context manager over a started stack; `play` carries the scenario out and returns the proof."""

    def __init__(self, stack: Stack, folder: Path, plan: Plan, view: View) -> None:
        environment = stack.environment()
        port = free_ports(1)[0]
        gateway = f"http://127.0.0.1:{port}"
        self._plan = plan
        self._view = view
        self._gateway = gateway
        self._log = folder / "gateway.jsonl"
        self._settings: Settings = load(
            database_url=environment["ONCEWARD_DATABASE_URL"],
            kafka_bootstrap_servers=environment["ONCEWARD_KAFKA_BOOTSTRAP_SERVERS"],
            registry_url=environment["ONCEWARD_REGISTRY_URL"],
        )
        environment |= {"HR_GATEWAY": gateway, "ONCEWARD_LOG_FORMAT": "json"}
        here = "examples.hr.handlers:app"
        commands = {
            "gateway": ["examples.hr.gateway", "--port", str(port), "--log", str(self._log)],
            "relay": ["onceward_cli.main", "relay"],
            "scheduler": ["onceward_cli.main", "scheduler", here],
            "worker-1": ["onceward_cli.main", "worker", here, "--instance", "worker-1"],
            "worker-2": ["onceward_cli.main", "worker", here, "--instance", "worker-2"],
        }
        self._programs = {name: Program(name, line, folder, environment) for name, line in commands.items()}
        self._connection = psycopg.connect(self._settings.dsn, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for program in reversed(self._programs.values()):
            program.stop()
        self._connection.close()

    def play(self) -> list[Check]:
        """Everything, in order. Raises: StuckError when the run does not come to its end in time."""
        self._prepare()
        for program in self._programs.values():
            program.start()
        outage = {"after": self._plan.employees // 4, "seconds": self._plan.outage_seconds}
        self._control({"broken": sorted(self._plan.broken), "outage": outage})
        run = self._press_twice()
        self._break_things(run)
        self._watch(run, lambda: self._run(run).completed_at is not None and self._settled())
        self._programs["scheduler"].stop()
        self._watch(run, self._settled)
        proof = list(self._proof(run))
        if self._plan.failing:
            proof += self._mend(run)
        return proof

    # -- steps

    def _prepare(self) -> None:
        migrate.apply(self._settings.dsn)
        self._connection.execute(TABLES.read_text())
        self._connection.execute(
            """insert into hr.employee
               select g, 'engineer', 'department ' || g %% 20, 1 + g %% 97 from generate_series(1, %s) g""",
            (self._plan.employees,),
        )
        registration.require(registration.register(load_folder(SCHEMAS), RegistryClient(self._settings.registry_url)))
        apply_topics(app, self._settings)
        self._view.say("schemas registered, tables and topics made")

    def _press_twice(self) -> UUID:
        engine = create_engine(self._settings.dsn.replace("postgresql://", "postgresql+psycopg://", 1))
        codec = codec_for(self._settings)
        changes = [
            Change(employee=e, position="lead", department=f"department {e % 7}", manager=1 + e % 13)
            for e in range(1, self._plan.employees + 1)
        ]
        outbox, runs = Outbox(codec), Runs(codec)

        def press() -> tuple[UUID, bool]:
            return press_run(engine, outbox, runs, changes, name=NAME, business_date=BUSINESS_DATE)

        began = time.monotonic()
        run, _ = press()
        self._view.say(f'"run" pressed: answered in {(time.monotonic() - began) * 1000:.0f} ms')
        again, duplicate = press()
        assert (again, duplicate) == (run, True), "the second press started a second run"
        self._view.say('"run" pressed again: the same run')
        engine.dispose()
        return run

    def _break_things(self, run: UUID) -> None:
        self._watch(run, lambda: self._changed(run) >= 0.25)
        self._kill("worker-1")
        self._watch(run, lambda: self._outage() != "to come")
        self._view.say(f"the mail gateway answers 503 for {self._plan.outage_seconds:.0f} s")
        self._kill("relay")
        self._watch(run, lambda: self._outage() == "over")
        self._view.say("the mail gateway is back")
        self._kill("worker-2")

    def _kill(self, name: str) -> None:
        self._programs[name].kill()
        self._view.say(f"{name} killed with SIGKILL")
        self._programs[name].start()

    def _proof(self, run: UUID) -> list[Check]:
        log = GatewayLog.read(self._log)
        self._view.say(f"the gateway turned {log.turned_away:,} requests away and saw {log.repeats} repeats")
        bootstrap = self._settings.kafka_bootstrap_servers
        notifications = topics.command_ids(bootstrap, "hr.notify")
        dead = topics.command_ids(bootstrap, "hr.notify.hr.dlq")
        return [
            *checks.after_the_run(self._connection, log, run, self._plan.employees, self._plan.broken),
            *checks.ticks(self._connection, HEARTBEAT),
            Check("different commands on Kafka's hr.notify", self._plan.employees, len(set(notifications))),
            Check("different commands on its dead-letter topic", self._plan.failing, len(set(dead))),
        ]

    def _mend(self, run: UUID) -> list[Check]:
        before = len(GatewayLog.read(self._log).requests)
        self._control({"broken": []})
        retried = retry_failed(self._connection, run, by="hr-portal").commands
        self._view.say(f"mailboxes mended; {retried} failed items retried")
        self._watch(run, lambda: self._run(run).completed_at is not None and self._settled())
        self._view.show(self._run(run), Traffic.read(self._connection))
        since = GatewayLog.read(self._log).since(before)
        return [
            Check("retried: only those who had failed", sorted(self._plan.broken), sorted(since.delivered.elements())),
            Check("state of the run after the retry", "completed", self._run(run).state),
            Check(
                "reports after the retry", (1,), self._count("select count(*) from hr.report where run_id = %s", run)
            ),
            *(Check(f"after the retry: {c.statement}", c.expected, c.found) for c in checks.settled(self._connection)),
        ]

    # -- looking

    def _watch(self, run: UUID, until: Callable[[], bool]) -> None:
        """Show the run until something is so, and no longer than the plan's patience."""
        deadline = time.monotonic() + self._plan.patience_seconds
        while not until():
            for program in self._programs.values():
                if program.ended():
                    raise SystemExit(f"{program.name} ended by itself:\n{program.last_words()}")
            if time.monotonic() > deadline:
                raise StuckError(f"Nothing came of it in {self._plan.patience_seconds:.0f} s.", remedy="See the logs.")
            self._view.show(self._run(run), Traffic.read(self._connection))
            time.sleep(0.2)

    def _run(self, run: UUID) -> run_progress.RunProgress:
        return run_progress.get(self._connection, run)

    def _changed(self, run: UUID) -> float:
        found = next(stage for stage in self._run(run).stages if stage.name == "changed")
        return found.processed / found.expected

    def _settled(self) -> bool:
        traffic = Traffic.read(self._connection)
        under_way = self._count("select count(*) from onceward.ledger where state in ('running', 'retrying', 'parked')")
        return (traffic.outbox, traffic.retrying, traffic.parked, under_way) == (0, 0, 0, (0,))

    def _count(self, sql: str, *arguments: object) -> tuple[int, ...] | None:
        return self._connection.execute(sql, arguments).fetchone()

    def _control(self, wish: dict[str, object]) -> None:
        _ask(self._gateway + "/control", json.dumps(wish).encode())

    def _outage(self) -> str:
        return _ask(self._gateway + "/outage")


def _ask(url: str, body: bytes | None = None) -> str:
    """One request to the gateway, which may still be starting."""
    deadline = time.monotonic() + 10
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=5) as response:
                return str(json.loads(response.read())["status"])
        except (ConnectionError, urllib.error.URLError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
