"""What must be true when the demo ends, asked of PostgreSQL, Kafka and the gateway's own log: not of Onceward."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the proof."""

    statement: str
    expected: object
    found: object

    @property
    def holds(self) -> bool:
        """Whether what was found is what was expected."""
        return self.expected == self.found


@dataclass(frozen=True, slots=True)
class GatewayLog:
    """The gateway's requests, as it wrote them down itself."""

    requests: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> GatewayLog:
        """Read the whole file."""
        return cls([json.loads(line) for line in path.read_text().splitlines()])

    def since(self, count: int) -> GatewayLog:
        """Only the requests after the first `count`."""
        return GatewayLog(self.requests[count:])

    @property
    def delivered(self) -> Counter[int]:
        """Mails that left the gateway, by employee: requests with a key delivered before do not count."""
        return Counter(r["employee"] for r in self.requests if r["status"] == 200 and not r["repeat"])

    @property
    def repeats(self) -> int:
        """Requests whose key had been delivered before, and which the gateway therefore did not deliver again."""
        return sum(r["repeat"] for r in self.requests)

    @property
    def turned_away(self) -> int:
        """Requests answered 503."""
        return sum(r["status"] == 503 for r in self.requests)

    def keys_per_employee(self) -> int:
        """The largest number of different idempotency keys seen for one employee."""
        keys: dict[int, set[str]] = {}
        for request in self.requests:
            keys.setdefault(request["employee"], set()).add(request["key"])
        return max(map(len, keys.values()), default=0)


def after_the_run(
    connection: psycopg.Connection[Any], gateway: GatewayLog, run: UUID, employees: int, failing: frozenset[int]
) -> Iterable[Check]:
    """The promises, once the run is complete."""
    one = _asker(connection)
    applied = "select count(*), count(distinct employee_id) from hr.change_log where run_id = %s"
    yield Check("changes applied, and employees changed: once each", (employees, employees), one(applied, run))
    as_requested = """
        select count(*) from hr.requested_change as wish join hr.employee as e on e.id = wish.employee_id
        where run_id = %s
          and (e.position, e.department, e.manager_id) = (wish.position, wish.department, wish.manager_id)"""
    yield Check("employees who are where they were meant to be", (employees,), one(as_requested, run))
    delivered = gateway.delivered
    yield Check("employees notified at the gateway", employees - len(failing), len(delivered))
    yield Check("mails to the one who got most", 1, max(delivered.values(), default=0))
    yield Check("idempotency keys of the employee with most", 1, gateway.keys_per_employee())
    yield Check("employees notified who should have failed", 0, len(failing & delivered.keys()))
    failed = connection.execute(
        "select item::bigint from onceward.run_items where run_id = %s and state = 'failed' and reason <> ''", (run,)
    ).fetchall()
    yield Check("failed employees, each with a reason", sorted(failing), sorted(item for (item,) in failed))
    yield Check(
        "state of the run",
        ("completed_with_errors" if failing else "completed",),
        one("select state from onceward.runs where id = %s", run),
    )
    yield from _order(connection, gateway, run)
    yield from settled(connection)


def _order(connection: psycopg.Connection[Any], gateway: GatewayLog, run: UUID) -> Iterable[Check]:
    one = _asker(connection)
    reports = "select count(*) from hr.report where run_id = %s"
    yield Check("reports recomputed after the run", (1,), one(reports, run))
    applied = connection.execute(
        "select employee_id, extract(epoch from applied_at)::float8 from hr.change_log where run_id = %s", (run,)
    ).fetchall()
    first: dict[int, float] = {}
    for request in gateway.requests:
        first.setdefault(request["employee"], request["at"])
    early = sum(first.get(employee, float("inf")) < at for employee, at in applied)
    yield Check("employees notified before their change was applied", 0, early)
    computed = connection.execute(
        "select extract(epoch from min(computed_at))::float8 from hr.report where run_id = %s", (run,)
    ).fetchone()
    last = max((r["at"] for r in gateway.requests if r["status"] == 200), default=0.0)
    yield Check("notifications before the report", True, bool(computed and computed[0] and computed[0] > last))


def settled(connection: psycopg.Connection[Any]) -> Iterable[Check]:
    """Nothing is left anywhere on the way."""
    one = _asker(connection)
    for table, what in (("holds", "keys held"), ("parked", "commands parked"), ("outbox_parked", "outbox rows parked")):
        yield Check(f"{what} at the end", (0,), one(f"select count(*) from onceward.{table}"))
    waiting = "select count(*) from onceward.ledger where state not in ('done', 'dead', 'discarded')"
    yield Check("commands still under way", (0,), one(waiting))
    yield Check("rows left in the outbox", (0,), one("select count(*) from onceward.outbox"))


def ticks(connection: psycopg.Connection[Any], interval: timedelta) -> Iterable[Check]:
    """Every tick of the heartbeat between the first and the last happened once."""
    one = _asker(connection)
    doubled = "select count(*) from (select tick from hr.heartbeat group by tick having count(*) > 1) as twice"
    yield Check("ticks of the schedule that ran twice", (0,), one(doubled))
    missed = """
        select count(*) from (
            select generate_series(min(tick), max(tick), %s) as tick from hr.heartbeat
        ) as due where not exists (select from hr.heartbeat where heartbeat.tick = due.tick)"""
    yield Check("ticks missed between first and last", (0,), one(missed, interval))


def _asker(connection: psycopg.Connection[Any]) -> Any:
    return lambda sql, *arguments: connection.execute(sql, arguments).fetchone()
