"""How runs stand, as values a person or a page can show. Counts are those of the keeper, a moment old at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias
from uuid import UUID

import psycopg
from psycopg.rows import class_row, dict_row

from onceward_runtime.sql import query
from onceward_schemas.errors import RunError

RunState: TypeAlias = Literal["queued", "running", "completed", "completed_with_errors"]
OPEN: tuple[RunState, ...] = ("queued", "running")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage's counts. `done` and `failed` items are processed; `retrying` ones are not yet again."""

    name: str
    expected: int
    done: int
    failed: int
    retrying: int

    @property
    def processed(self) -> int:
        """Items with a result."""
        return self.done + self.failed

    @property
    def complete(self) -> bool:
        """Whether nothing more is expected."""
        return self.processed >= self.expected

    @property
    def percent(self) -> int:
        """Share processed; 100 only when complete."""
        return _percent(self.processed, self.expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """One run with its stages, in the order they were declared."""

    id: UUID
    kind: str
    business_key: str | None
    params: dict[str, Any]
    state: RunState
    stages: tuple[Stage, ...]
    follow_up_id: UUID | None
    """The command published at completion, once it has been."""
    created_by: str | None
    created_at: datetime
    progressed_at: datetime
    """When a count last changed; an open run where this is long ago is stuck."""
    completed_at: datetime | None

    @property
    def percent(self) -> int:
        """Share of all stages' items processed; 100 only when every stage is complete."""
        if all(stage.complete for stage in self.stages):
            return 100
        processed = sum(min(stage.processed, stage.expected) for stage in self.stages)
        return min(99, _percent(processed, sum(stage.expected for stage in self.stages)))

    @property
    def failed(self) -> int:
        """Failed items over all stages."""
        return sum(stage.failed for stage in self.stages)

    @property
    def open(self) -> bool:
        """Whether more is expected."""
        return self.state in OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedItem:
    """One member of a run that has no result, and why."""

    stage: str
    item: str
    reason: str | None
    error: str | None
    consumer_group: str | None
    command_id: UUID | None
    at: datetime

    @property
    def explanation(self) -> str:
        """The reason in words."""
        said = _WORDS.get(self.reason or "", (self.reason or "no reason recorded").replace("_", " "))
        detail = (self.error or "").strip().splitlines()
        return f"{said}: {detail[0]}" if detail else said


_WORDS = {
    "attempts_exhausted": "Every attempt failed, the last one with",
    "time_exhausted": "It failed until its time was up, the last time with",
    "crashed": "The worker died at it, each time",
    "deadline": "Its deadline passed before it could run",
    "timeout": "It took longer than allowed",
    "constraint_violation": "The database refused the data",
    "invalid_data": "The database refused the data",
    "type_mismatch": "Its data belongs to another kind of command",
}


def get(connection: psycopg.Connection[Any], run_id: UUID) -> RunProgress:
    """One run.

    Raises: RunError when there is none of this id.
    """
    found = _read(connection, ids=[run_id])
    if not found:
        raise RunError(f"There is no run {run_id}.", remedy="`onceward runs list` shows those there are.")
    return found[0]


def list_runs(
    connection: psycopg.Connection[Any],
    *,
    kind: str | None = None,
    states: Sequence[RunState] | None = None,
    limit: int = 50,
) -> list[RunProgress]:
    """The newest runs first."""
    return _read(connection, kind=kind, states=list(states) if states is not None else None, limit=limit)


def stuck(connection: psycopg.Connection[Any], idle: timedelta, *, limit: int = 50) -> list[RunProgress]:
    """Open runs that have made no progress for at least `idle`."""
    return _read(connection, states=list(OPEN), idle_seconds=idle.total_seconds(), limit=limit)


def failed_items(
    connection: psycopg.Connection[Any], run_id: UUID, *, stage: str | None = None, limit: int = 1000
) -> list[FailedItem]:
    """The run's failed items, by stage and name."""
    with connection.cursor(row_factory=class_row(FailedItem)) as cursor:
        arguments = {"run_id": run_id, "stage": stage, "limit": limit}
        return cursor.execute(query("onceward_consumer", "run_items_failed"), arguments).fetchall()


def _read(
    connection: psycopg.Connection[Any],
    *,
    ids: list[UUID] | None = None,
    kind: str | None = None,
    states: list[RunState] | None = None,
    idle_seconds: float | None = None,
    limit: int = 1,
) -> list[RunProgress]:
    arguments = {"ids": ids, "kind": kind, "states": states, "idle_seconds": idle_seconds, "limit": limit}
    with connection.cursor(row_factory=dict_row) as cursor:
        runs = cursor.execute(query("onceward_consumer", "runs_list"), arguments).fetchall()
        stages = cursor.execute(
            query("onceward_consumer", "run_stages_list"), {"run_ids": [run["id"] for run in runs]}
        ).fetchall()
    of_run: dict[UUID, list[Stage]] = {run["id"]: [] for run in runs}
    for row in stages:
        of_run[row.pop("run_id")].append(Stage(name=row.pop("stage"), **row))
    return [RunProgress(stages=tuple(of_run[run["id"]]), **run) for run in runs]


def _percent(part: int, whole: int) -> int:
    return 100 if part >= whole else part * 100 // whole
