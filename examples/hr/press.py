"""What the "run" button does: save the intent, publish the packages, answer at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from uuid import UUID

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from examples.hr.commands import ApplyPackage, RecomputeReport
from onceward import Outbox, Runs

PACKAGE_SIZE = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One employee's new place, as the person who presses the button wishes it."""

    employee: int
    position: str
    department: str
    manager: int


def press_run(
    engine: Engine, outbox: Outbox, runs: Runs, changes: Sequence[Change], *, name: str, business_date: date
) -> tuple[UUID, bool]:
    """Start the run, once: its changes, its packages and its follow-up in one transaction.

    Returns the run's id, and whether an earlier press had started it already.
    """
    with Session(engine) as session, session.begin():
        run = runs.start(
            session,
            "reorganisation",
            {"name": name, "employees": len(changes)},
            expected={"changed": len(changes), "notified": len(changes)},
            business_key=name,
            follow_up=RecomputeReport(report="headcount", business_date=business_date),
            created_by="hr-portal",
        )
        if run.duplicate:
            return run.id, True
        session.execute(
            text("insert into hr.requested_change values (:run, :employee, :position, :department, :manager)"),
            [
                {
                    "run": run.id,
                    "employee": change.employee,
                    "position": change.position,
                    "department": change.department,
                    "manager": change.manager,
                }
                for change in changes
            ],
        )
        packages = [changes[start : start + PACKAGE_SIZE] for start in range(0, len(changes), PACKAGE_SIZE)]
        for number, package in enumerate(packages):
            command = ApplyPackage(package=f"{name}-{number}", employees=tuple(change.employee for change in package))
            outbox.publish(session, command, run_id=run.id, origin="hr-portal", dedupe_key=f"{run.id}:{number}")
        return run.id, False
