"""What waits in the outbox, and whether a relay carries it away, as the database shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import psycopg
from psycopg.rows import class_row

from onceward_runtime.sql import query


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """The outbox at one moment."""

    slot: str
    relay: Literal["streaming", "polling"] | None
    """How the active relay of the slot's name works; None when there is none."""
    pending: int
    """Rows in the table: not relayed yet, or only just."""
    oldest_seconds: float | None
    """Age of the first of them."""
    wal_status: str | None
    """Of the slot; None without one, as before the first start of a relay or when it polls."""
    retained_bytes: int | None
    """Of the write-ahead log, kept for the slot."""
    parked: int
    """Rows that Kafka refused."""
    following: int
    """Rows that wait behind those for the order of their key."""


def outbox_status(connection: psycopg.Connection[Any], slot: str) -> OutboxStatus:
    """Look. Counts every row, so not for a loop."""
    with connection.cursor(row_factory=class_row(OutboxStatus)) as cursor:
        found = cursor.execute(query("onceward_outbox_relay", "outbox_status"), {"slot": slot}).fetchone()
    assert found is not None
    return found
