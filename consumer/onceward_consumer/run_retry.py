"""Retrying what failed of a run, and only that: its dead letters are replayed, and its items wait again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from onceward_consumer.dead_letter_decisions import BATCH, replay
from onceward_consumer.dead_letters import Identity
from onceward_consumer.run_progress import FailedItem, failed_items, get
from onceward_runtime.sql import query
from onceward_schemas.errors import RunError


@dataclass(frozen=True, slots=True)
class Retried:
    """What a retry set going, and what it had to leave."""

    commands: int
    left: list[FailedItem]
    """Items that stay failed: what they failed by is no open dead letter, for instance a command that was discarded."""


def retry_failed(
    connection: psycopg.Connection[Any],
    run_id: UUID,
    *,
    stage: str | None = None,
    by: str,
    because: str | None = None,
    batch: int = BATCH,
) -> Retried:
    """Replay the dead letters behind the run's failed items. `connection` is in autocommit; each batch is a transaction.

    The run is open again until they have a result, and completes a second time without a second follow-up. Pressing twice
    replays nothing twice. A crash in between leaves the rest failed: press again.

    Raises: RunError when there is no such run or stage.
    """
    run = get(connection, run_id)
    if stage is not None and stage not in [each.name for each in run.stages]:
        known = ", ".join(each.name for each in run.stages)
        raise RunError(f"The run has no stage {stage!r}.", remedy=f"Its stages are {known}.")
    found = connection.execute(
        query("onceward_consumer", "run_commands_failed"), {"run_id": run_id, "stage": stage}
    ).fetchall()
    named = [Identity(group, command_id) for group, command_id in found]
    done = 0
    for start in range(0, len(named), batch):
        done += len(replay(connection, named[start : start + batch], by=by, because=because or f"run {run_id}").done)
    return Retried(done, failed_items(connection, run_id, stage=stage))
