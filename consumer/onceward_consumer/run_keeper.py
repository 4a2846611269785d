"""The loop that watches open runs: moves them on, completes them, and publishes each follow-up exactly once.

Every worker process has one. A run's row is locked while it is looked at, so that one keeper decides; the verdict and the
follow-up's outbox row commit together.
"""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from onceward_consumer.run_progress import RunState
from onceward_consumer.runs import stored_follow_up
from onceward_producer.rows import INSERT_MANY, OutboxRow, arrays
from onceward_runtime import events, log
from onceward_runtime.database_loop import DatabaseLoop
from onceward_runtime.postgres import SessionLimits
from onceward_runtime.settings import Settings
from onceward_runtime.sql import query

_PACKAGE = "onceward_consumer"
_BATCH = 100
CHECK_SECONDS = 0.3
_LIMITS = SessionLimits(
    lock_timeout=timedelta(seconds=5),
    statement_timeout=timedelta(seconds=60),
    idle_in_transaction_session_timeout=timedelta(seconds=10),
)
_IDLE_CHECK_SECONDS = 5.0
_COUNT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Counts:
    """One stage: what is expected, and what there is."""

    stage: str
    expected: int
    done: int
    failed: int
    retrying: int
    changed: bool


def next_state(stages: list[Counts]) -> RunState:
    """What a run's counts make of it.

    >>> next_state([Counts("sent", 2, 1, 1, 0, True)])
    'completed_with_errors'
    """
    if all(stage.done + stage.failed >= stage.expected for stage in stages):
        return "completed_with_errors" if any(stage.failed for stage in stages) else "completed"
    return "running" if any(stage.done + stage.failed + stage.retrying for stage in stages) else "queued"


def wait_seconds(count_seconds: float, idle_seconds: float) -> float:
    """When to look at a run again: counting takes at most a tenth of the time, and a still run is looked at less often.

    >>> wait_seconds(0.001, 0.0), wait_seconds(0.2, 0.0), wait_seconds(0.001, 3600.0)
    (0.3, 2.0, 5.0)
    """
    return max(CHECK_SECONDS, min(idle_seconds / 20, _IDLE_CHECK_SECONDS), 10 * count_seconds)


class Completed(NamedTuple):
    """A run that has just been completed, for the log."""

    run_id: UUID
    kind: str
    state: RunState
    done: int
    failed: int


class Checked(NamedTuple):
    """What one look found."""

    looked_at: int
    completed: list[Completed]


def check_runs(connection: psycopg.Connection[Any]) -> Checked:
    """Look once at the open runs whose turn it is and that no other keeper has; one transaction."""
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        runs = cursor.execute(query(_PACKAGE, "runs_to_check"), {"limit": _BATCH}).fetchall()
        if not runs:
            return Checked(0, [])
        begun = time.monotonic()
        stages = _count(cursor, [run["id"] for run in runs])
        count_seconds = (time.monotonic() - begun) / len(runs)
        follow_ups = dict(_follow_ups(runs, stages))
        if follow_ups:
            cursor.execute(INSERT_MANY, arrays(follow_ups.values()))
        states = {run["id"]: next_state(stages[run["id"]]) for run in runs}
        changed = {run["id"]: any(stage.changed for stage in stages[run["id"]]) for run in runs}
        cursor.execute(
            query(_PACKAGE, "runs_checked"),
            {
                "ids": list(states),
                "states": list(states.values()),
                "progressed": list(changed.values()),
                "follow_up_ids": [follow_ups[run_id].id if run_id in follow_ups else None for run_id in states],
                "waits": [
                    wait_seconds(count_seconds, 0.0 if changed[run["id"]] else run["idle_seconds"]) for run in runs
                ],
            },
        )
        return Checked(len(runs), _completed(runs, states, stages))


def _count(cursor: psycopg.Cursor[dict[str, Any]], run_ids: list[UUID]) -> dict[UUID, list[Counts]]:
    """Count the items of each run, and write down what has changed."""
    found = cursor.execute(query(_PACKAGE, "run_items_count"), {"run_ids": run_ids}).fetchall()
    names = ("done", "failed", "retrying")
    stages: dict[UUID, list[Counts]] = defaultdict(list)
    changed = []
    for row in found:
        is_changed = any(row[name] != row[f"old_{name}"] for name in names)
        if is_changed:
            changed.append(row)
        counts = Counts(row["stage"], row["expected"], row["done"], row["failed"], row["retrying"], changed=is_changed)
        stages[row["run_id"]].append(counts)
    if changed:
        arguments = {name: [row[name] for row in changed] for name in names}
        arguments |= {"run_ids": [row["run_id"] for row in changed], "stages": [row["stage"] for row in changed]}
        cursor.execute(query(_PACKAGE, "run_stages_counted"), arguments)
    return stages


def _follow_ups(runs: list[dict[str, Any]], stages: dict[UUID, list[Counts]]) -> list[tuple[UUID, OutboxRow]]:
    """The rows to publish: of runs that complete, and have not published theirs before a retry reopened them."""
    return [
        (run["id"], stored_follow_up(run["follow_up"]))
        for run in runs
        if run["follow_up"] and not run["followed_up"] and next_state(stages[run["id"]]).startswith("completed")
    ]


def _completed(
    runs: list[dict[str, Any]], states: dict[UUID, RunState], stages: dict[UUID, list[Counts]]
) -> list[Completed]:
    return [
        Completed(
            run["id"],
            run["kind"],
            states[run["id"]],
            sum(stage.done for stage in stages[run["id"]]),
            sum(stage.failed for stage in stages[run["id"]]),
        )
        for run in runs
        if states[run["id"]].startswith("completed")
    ]


class RunKeeper(DatabaseLoop):
    """The loop as a service. Starting several, in one process or in many, changes nothing but who looks first."""

    def __init__(self, database: Settings | str) -> None:
        super().__init__("runs", database, self._look, limits=_LIMITS)
        self._counted: dict[tuple[str, str], int] = {}
        self._count_at = 0.0

    def _look(self, connection: psycopg.Connection[Any]) -> float:
        checked = check_runs(connection)
        for run in checked.completed:
            log.emit(events.RUN_COMPLETED, **run._asdict())
        if checked.completed or time.monotonic() >= self._count_at:
            self._count_open(connection)
        return 0.0 if checked.looked_at == _BATCH else CHECK_SECONDS

    def _count_open(self, connection: psycopg.Connection[Any]) -> None:
        """Set the gauge; what is not counted any more goes to zero."""
        rows = connection.execute(query(_PACKAGE, "runs_open_counts")).fetchall()
        counts = {(kind, state): count for kind, state, count in rows}
        for labels in self._counted.keys() | counts.keys():
            events.RUNS.labels(*labels).set(counts.get(labels, 0))
        self._counted = counts
        self._count_at = time.monotonic() + _COUNT_SECONDS
