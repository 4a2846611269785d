"""Parked commands as operators see them: what waits and why; and giving some up."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from onceward_runtime.sql import query
from onceward_schemas.errors import ParkedError

Connection = psycopg.Connection[Any]

HELD: Final = "held"
_LIST: Final = query("onceward_consumer", "parked_list")
_HEAPS: Final = query("onceward_consumer", "parked_heaps")
_DISCARD: Final = query("onceward_consumer", "parked_discard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which are meant; None is all."""

    group: str | None = None
    lane: str | None = None
    reason: str | None = None
    key: str | None = None
    type: str | None = None
    tenant: str | None = None
    ids: list[UUID] | None = None


@dataclass(frozen=True, slots=True)
class ParkedCommand:
    """One of them."""

    command_id: UUID
    consumer_group: str
    lane: str
    type: str | None
    tenant: str | None
    key: str | None
    reason: str
    attempt: int
    parked_at: datetime


@dataclass(frozen=True, slots=True)
class Heap:
    """Those of one app, lane and reason."""

    consumer_group: str
    lane: str
    reason: str
    commands: int
    oldest: datetime


def find(connection: Connection, wanted: Wanted, limit: int) -> list[ParkedCommand]:
    """In the order of their arrival."""
    with connection.cursor(row_factory=class_row(ParkedCommand)) as cursor:
        return cursor.execute(_LIST, asdict(wanted) | {"limit": limit}).fetchall()


def heaps(connection: Connection, group: str | None) -> list[Heap]:
    """The largest first."""
    with connection.cursor(row_factory=class_row(Heap)) as cursor:
        return cursor.execute(_HEAPS, {"group": group}).fetchall()


def discard(connection: Connection, wanted: Wanted, limit: int | None, *, by: str, because: str) -> list[UUID]:
    """Give up those that fit, but for followers, which go on behind them. One transaction; returns their ids.

    Within half a minute a worker of the app ends each as `discarded`, and its key goes on.

    Raises: ParkedError where no reason is given, or followers are meant.
    """
    if not because.strip():
        raise ParkedError("No reason is given.", remedy='Say why: --because "...".')
    if wanted.reason == HELD:
        raise ParkedError(
            "Held commands wait for the head of their key.", remedy="Decide on the head; they go on by themselves."
        )
    values = asdict(wanted) | {"limit": limit, "by": by, "because": because}
    with connection.transaction():
        return [row[0] for row in connection.execute(_DISCARD, values).fetchall()]
