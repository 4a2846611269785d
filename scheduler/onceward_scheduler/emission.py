"""The transaction of ticks: fenced by the epochs, it writes tick rows, outbox rows and the schedules' next ticks together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import psycopg
from psycopg import errors

from onceward_producer.rows import INSERT_MANY, OutboxRow, arrays
from onceward_runtime.sql import query
from onceward_scheduler.planning import DueSchedule, Planned, PlannedTick

_PACKAGE = "onceward_scheduler"
Epochs = Mapping[int, int]
"""The epoch under which this process leads each partition."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """What one transaction decided, and the partitions that turned out to have another leader."""

    ticks: list[tuple[Planned, PlannedTick]] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)


def take_epoch(connection: psycopg.Connection[Any], app: str, partition: int, leader: UUID) -> int:
    """Become the partition's leader: from the commit on, whoever led it before cannot emit."""
    found = connection.execute(
        query(_PACKAGE, "epoch_take"), {"app": app, "partition": partition, "leader": leader}
    ).fetchone()
    assert found is not None
    return int(found[0])


def read_due(
    connection: psycopg.Connection[Any], app: str, epochs: Epochs, known: Sequence[str], limit: int
) -> list[DueSchedule]:
    """The schedules that are due by the database's clock, the longest due first."""
    arguments = {"app": app, "partitions": list(epochs), "known": list(known), "limit": limit}
    found = connection.execute(query(_PACKAGE, "schedules_due"), arguments).fetchall()
    # In UTC whatever the session's zone: Python finds no two zones' times equal while a zone's clocks are set back.
    return [
        DueSchedule(one, partition, _utc(next_at), last_at and _utc(last_at), failures, _utc(now))
        for one, partition, next_at, last_at, failures, now in found
    ]


def seconds_until_due(
    connection: psycopg.Connection[Any], app: str, epochs: Epochs, known: Sequence[str]
) -> float | None:
    """How long until the next one is due; None when none will be."""
    arguments = {"app": app, "partitions": list(epochs), "known": list(known)}
    found = connection.execute(query(_PACKAGE, "schedules_wait"), arguments).fetchone()
    return cast("float | None", found[0]) if found else None


def emit(connection: psycopg.Connection[Any], app: str, epochs: Epochs, planned: Sequence[Planned]) -> Emitted:
    """Write what was planned, in one transaction, as far as this process still leads and the schedules are unchanged.

    A tick that was decided before is not decided again, so its command is not published again.
    """
    with connection.transaction():
        valid, fenced = _still_led(connection, app, epochs, planned)
        valid = _still_so(connection, app, valid)
        if not valid:
            return Emitted(fenced=fenced)
        decided = _record(connection, app, epochs, valid)
        # In the order of their instants over all schedules, as if each had been written when it was due.
        decided.sort(key=lambda pair: pair[1].scheduled_at)
        rows: list[OutboxRow] = [row for _, tick in decided for row in tick.rows]
        if rows:
            connection.execute(INSERT_MANY, arrays(rows))
        connection.execute(
            query(_PACKAGE, "schedules_advance"),
            {
                "app": app,
                "ids": [one.schedule.id for one in valid],
                "next_at": [one.next_at for one in valid],
                "last_at": [one.last_at for one in valid],
                "wait_seconds": [one.wait_seconds for one in valid],
            },
        )
    return Emitted(decided, fenced)


def emit_all(
    connection: psycopg.Connection[Any], app: str, epochs: Mapping[int, int], planned: list[Planned]
) -> list[Emitted]:
    """All in one transaction; if the server refuses it, one by one, so that one schedule's rows cannot stop others."""
    if not planned:
        return []
    try:
        return [emit(connection, app, epochs, planned)]
    except psycopg.Error as error:
        if connection.closed or not _is_about_rows(error):
            raise
        if len(planned) == 1:
            return [emit(connection, app, epochs, [planned[0].failed(error)])]
    return [emitted for one in planned for emitted in emit_all(connection, app, epochs, [one])]


def _is_about_rows(error: psycopg.Error) -> bool:
    """Whether it may come from one schedule's rows, and not from the server, a lock or the connection."""
    elsewhere = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
    return not elsewhere or isinstance(error, errors.QueryCanceled | errors.ProgramLimitExceeded)


def _still_led(
    connection: psycopg.Connection[Any], app: str, epochs: Epochs, planned: Sequence[Planned]
) -> tuple[list[Planned], list[int]]:
    """Lock the epochs against a successor and compare them with ours."""
    partitions = sorted({one.schedule.partition for one in planned})
    found = dict(connection.execute(query(_PACKAGE, "epochs_hold"), {"app": app, "partitions": partitions}).fetchall())
    fenced = [partition for partition in partitions if found.get(partition) != epochs.get(partition, -1)]
    return [one for one in planned if one.schedule.partition not in fenced], fenced


def _still_so(connection: psycopg.Connection[Any], app: str, planned: list[Planned]) -> list[Planned]:
    arguments = {
        "app": app,
        "ids": [one.schedule.id for one in planned],
        "next_at": [one.schedule.next_at for one in planned],
    }
    same = {found[0] for found in connection.execute(query(_PACKAGE, "schedules_lock"), arguments)}
    return [one for one in planned if one.schedule.id in same]


def _record(
    connection: psycopg.Connection[Any], app: str, epochs: Epochs, planned: list[Planned]
) -> list[tuple[Planned, PlannedTick]]:
    pairs = {(one.schedule.id, tick.scheduled_at): (one, tick) for one in planned for tick in one.ticks}
    arguments = {
        "app": app,
        "schedule_ids": [schedule_id for schedule_id, _ in pairs],
        "scheduled_at": [scheduled_at for _, scheduled_at in pairs],
        "outcomes": [tick.outcome for _, tick in pairs.values()],
        "reasons": [tick.reason for _, tick in pairs.values()],
        "command_ids": [",".join(str(row.id) for row in tick.rows) or None for _, tick in pairs.values()],
        "epochs": [epochs[one.schedule.partition] for one, _ in pairs.values()],
    }
    decided = connection.execute(query(_PACKAGE, "ticks_record"), arguments).fetchall()
    return [pairs[schedule_id, _utc(scheduled_at)] for schedule_id, scheduled_at in decided]


def _utc(instant: datetime) -> datetime:
    return instant.astimezone(UTC)
