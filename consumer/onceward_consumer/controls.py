"""What operators do at run time: set and clear limits, pause and resume, and see what holds. Each change is recorded."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import psycopg
from psycopg.rows import class_row, dict_row
from psycopg.types.json import Jsonb

from onceward_consumer import limits
from onceward_consumer.limits import ANY_TENANT, Override
from onceward_runtime.sql import query
from onceward_schemas.errors import LimitError

_PACKAGE: Final = "onceward_consumer"
_ROW: Final = query(_PACKAGE, "limits_row")
_PUT: Final = query(_PACKAGE, "limits_put")
_DELETE: Final = "delete from onceward.limits where consumer_group = %s and scope = %s"
_CHANGE: Final = query(_PACKAGE, "limit_changes_add")
_LOCK: Final = "select pg_advisory_xact_lock(hashtextextended('onceward.limits ' || %s, 0))"
_SHOW: Final = query(_PACKAGE, "limits_show")
_HISTORY: Final = query(_PACKAGE, "limit_changes_list")
_GROUPS: Final = query(_PACKAGE, "limits_groups")
_KNOWN: Final = query(_PACKAGE, "limits_known")

Connection = psycopg.Connection[Any]
Action = Literal["set", "clear", "pause", "resume"]


@dataclass(frozen=True, slots=True)
class Shown:
    """A limit: what an operator set, and what its workers do under it."""

    consumer_group: str
    scope: str
    concurrency: int | None
    rate: str | None
    breaker_off: bool
    paused: bool
    permits: int
    """What live workers have leased of its concurrency."""
    wanted: int
    """What they could use."""
    breaker: str | None
    """closed, half_open or open; None where it has no breaker or nothing was called."""
    open_until: datetime | None
    reason: str | None
    declared: str | None
    """What the app says, as the last worker to start has it."""
    set_by: str | None
    because: str | None
    updated_at: datetime | None


@dataclass(frozen=True, slots=True)
class Change:
    """One change, as it was recorded."""

    at: datetime
    consumer_group: str
    scope: str
    action: Action
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    set_by: str
    because: str


def set_limit(
    connection: Connection,
    group: str,
    scope: str,
    *,
    by: str,
    because: str,
    concurrency: int | Literal["off"] | None = None,
    rate: str | None = None,
    breaker: Literal["on", "off"] | None = None,
) -> None:
    """Set what is given and leave the rest; `off` takes a declared limit away. One transaction; workers see it in a second.

    Raises: AppError where a value is wrong; LimitError where nothing is given.
    """
    if concurrency is None and rate is None and breaker is None:
        raise LimitError("Nothing is to be set.", remedy="Give a concurrency, a rate or the breaker.")
    if breaker is not None and not scope.startswith("destination:"):
        raise LimitError(f"{scope} has no breaker.", remedy="Breakers belong to destinations.")
    if concurrency not in (None, "off"):
        concurrency = limits.concurrency(concurrency)
    if rate not in (None, Override.OFF):
        rate = str(limits.rate(rate))

    def change(row: dict[str, Any]) -> dict[str, Any]:
        if concurrency is not None:
            row["concurrency"] = Override.NO_CONCURRENCY if concurrency == "off" else concurrency
        if rate is not None:
            row["rate"] = rate
        if breaker is not None:
            row["breaker"] = Override.OFF if breaker == "off" else None
        return row

    _change(connection, group, scope, "set", change, by, because)


def clear_limit(connection: Connection, group: str, scope: str, *, by: str, because: str) -> bool:
    """Go back to what the app declares; a pause stays. False where nothing was set."""

    def change(row: dict[str, Any]) -> dict[str, Any]:
        return _NOTHING | {"paused": row["paused"]}

    return _change(connection, group, scope, "clear", change, by, because)


def pause(connection: Connection, group: str, scope: str, *, by: str, because: str) -> bool:
    """Let nothing of the scope begin; what runs goes on. False where it was paused already."""
    if scope == ANY_TENANT:
        raise LimitError("All tenants cannot be paused at once.", remedy="Pause the lanes, or the tenants by name.")
    return _change(connection, group, scope, "pause", lambda row: row | {"paused": True}, by, because)


def resume(connection: Connection, group: str, scope: str, *, by: str, because: str) -> bool:
    """Let it go on. False where it was not paused."""
    return _change(connection, group, scope, "resume", lambda row: row | {"paused": False}, by, because)


_NOTHING: Final[dict[str, Any]] = {"concurrency": None, "rate": None, "breaker": None, "paused": False}


def _change(connection: Connection, group: str, scope: str, action: Action, change: Any, by: str, because: str) -> bool:
    """Change a row and record it, in one transaction. False where it changed nothing, which is not recorded."""
    limits.scope(scope)
    if not because.strip():
        raise LimitError("No reason is given.", remedy='Say why: --because "...".')
    with connection.transaction(), connection.cursor(row_factory=dict_row) as cursor:
        cursor.execute(_LOCK, (group,))
        before = cursor.execute(_ROW, (group, scope)).fetchone()
        after = change(dict(before or _NOTHING))
        if after == (before or _NOTHING):
            return False
        if after == _NOTHING:
            cursor.execute(_DELETE, (group, scope))
        else:
            cursor.execute(_PUT, after | {"group": group, "scope": scope, "by": by, "because": because})
        recorded = {"before": before and Jsonb(before), "after": None if after == _NOTHING else Jsonb(after)}
        cursor.execute(
            _CHANGE, recorded | {"group": group, "scope": scope, "action": action, "by": by, "because": because}
        )
    return True


def show(connection: Connection, group: str | None = None) -> list[Shown]:
    """All limits that are set, and all that workers meet."""
    with connection.cursor(row_factory=class_row(Shown)) as cursor:
        return cursor.execute(_SHOW, {"group": group}).fetchall()


def history(connection: Connection, group: str | None, scope: str | None, limit: int) -> list[Change]:
    """Changes, the latest first."""
    with connection.cursor(row_factory=class_row(Change)) as cursor:
        return cursor.execute(_HISTORY, {"group": group, "scope": scope, "limit": limit}).fetchall()


def doubt(connection: Connection, group: str, scope: str) -> str | None:
    """Why a name may be a slip: no worker of the app has ever named it. None where all is well."""
    known = [str(row[0]) for row in connection.execute(_KNOWN, (group,)).fetchall()]
    if not known:
        return f"No worker of {group} has run on this database yet."
    if scope in known or scope.startswith("tenant:"):
        return None
    nearest = difflib.get_close_matches(scope, known, n=1)
    return f"No handler of {group} has this {scope.partition(':')[0]}." + (
        f" Did you mean {nearest[0]}?" if nearest else ""
    )


def group_of(connection: Connection, given: str | None) -> str:
    """The group that is meant: the one given, or the only one that has workers or limits.

    Raises: LimitError.
    """
    if given is not None:
        return given
    found = [row[0] for row in connection.execute(_GROUPS).fetchall()]
    if len(found) == 1:
        return str(found[0])
    known = f"There are {', '.join(map(str, found))}." if found else "No worker is known here."
    raise LimitError(f"No app is named. {known}", remedy="Say which: --app NAME.")
