"""A run over hundreds of employees is carried out once and in order, whatever fails on the way.

Two workers and the relay are killed, the mail gateway is away for a while and refuses some employees for good, and "run" is
pressed twice. The demo's own checks ask PostgreSQL, Kafka and the gateway's log what really happened.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from examples.hr.scenario import Plan, Scenario
from examples.hr.view import View
from onceward_devstack.stack import Stack


def test_every_employee_is_changed_and_notified_once(own_stack: Stack, tmp_path: Path) -> None:
    plan = Plan(employees=600, failing=5, outage_seconds=4, patience_seconds=120)
    with View(Console()) as view, Scenario(own_stack, tmp_path, plan, view) as scenario:
        checks = scenario.play()
    assert len(checks) > 20
    assert [check for check in checks if not check.holds] == []


def test_a_run_in_which_nobody_fails_is_completed(own_stack: Stack, tmp_path: Path) -> None:
    plan = Plan(employees=120, failing=0, outage_seconds=1, patience_seconds=120)
    with View(Console()) as view, Scenario(own_stack, tmp_path, plan, view) as scenario:
        checks = scenario.play()
    assert [check for check in checks if not check.holds] == []
