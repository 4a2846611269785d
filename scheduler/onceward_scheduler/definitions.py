"""The schedules that an application declares, read once, and their rows in the database."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from onceward_consumer.app import App, ScheduleDeclaration
from onceward_runtime.sql import query
from onceward_scheduler.rules import Rule, parse
from onceward_scheduler.ticks import CatchUp, catch_up_of
from onceward_schemas.errors import AppError

_PACKAGE = "onceward_scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One declared schedule."""

    id: str
    rule: Rule
    tz: str
    catch_up: CatchUp
    function: Callable[..., Any]
    stored: dict[str, Any]
    """The rule as the database keeps it."""


def definitions(app: App) -> Mapping[str, Definition]:
    """Read the rules of an application's schedules, by their ids.

    Raises: AppError naming the schedule.
    """
    return {declared.id: _definition(declared) for declared in app.schedules}


def _definition(declared: ScheduleDeclaration) -> Definition:
    try:
        rule = parse(declared.rule, declared.tz)
    except AppError as error:
        raise AppError(f"The schedule {declared.id!r}: {error.message}", remedy=error.remedy) from error
    window = None if declared.catch_up is None else declared.catch_up.total_seconds()
    return Definition(
        id=declared.id,
        rule=rule,
        tz=declared.tz,
        catch_up=catch_up_of(declared.catch_up),
        function=declared.function,
        stored={"rule": declared.rule, "tz": declared.tz, "catch_up_seconds": window},
    )


def partition_of(app: str, schedule_id: str, partitions: int) -> int:
    """Which partition of the scheduler's topic a schedule belongs to."""
    return zlib.crc32(f"{app}/{schedule_id}".encode()) % partitions


def register(
    connection: psycopg.Connection[Any], app: str, declared: Mapping[str, Definition], partitions: int
) -> list[str]:
    """Make the rows agree with the declarations, in one transaction; several processes may do so at once.

    New schedules start from now. A changed rule plans its next tick anew, unless one is due already: that one is kept. Rows
    of schedules that are no longer declared stay and are not emitted. Returns the ids of those that are newly so.
    """
    arguments: dict[str, Any] = {"app": app, "ids": list(declared)}
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute("select pg_advisory_xact_lock(hashtext('onceward.schedules'), hashtext(%s))", [app])
        now = cursor.execute("select clock_timestamp() as now").fetchall()[0]["now"]
        known = {row["id"]: row for row in cursor.execute(query(_PACKAGE, "schedules_known"), arguments)}
        changed = []
        for one in declared.values():
            partition, row = partition_of(app, one.id, partitions), known.get(one.id)
            if row is None or row["long_undeclared"]:
                next_at = one.rule.next_after(now)
            elif row["rule"] == one.stored:
                next_at = row["next_at"]
                if row["partition"] == partition and row["undeclared_at"] is None:
                    continue
            else:
                due = row["next_at"] is not None and row["next_at"] <= now
                next_at = row["next_at"] if due else one.rule.next_after(now)
            changed.append((one.id, partition, json.dumps(one.stored), next_at))
        if changed:
            columns = [list(column) for column in zip(*changed, strict=True)]
            names = ("ids", "partitions", "rules", "next_at")
            cursor.execute(
                query(_PACKAGE, "schedules_register"), {"app": app, **dict(zip(names, columns, strict=True))}
            )
        gone = cursor.execute(query(_PACKAGE, "schedules_undeclare"), arguments).fetchall()
        return [row["id"] for row in gone]


def redeclare(connection: psycopg.Connection[Any], app: str, declared: Mapping[str, Definition]) -> None:
    """Say that these schedules are declared after all, whatever a process with other code said."""
    connection.execute(query(_PACKAGE, "schedules_redeclare"), {"app": app, "ids": list(declared)})
