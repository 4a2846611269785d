"""Deletes what is in Kafka from the outbox without marks on rows, and expired dedupe entries.

A snapshot's xmin and then the log's insert position are taken; once everything before that position is acknowledged, all
rows of transactions before that xmin are in Kafka.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import psycopg
from psycopg import sql

from onceward_outbox_relay.layout import Layout
from onceward_outbox_relay.replication import lsn_of
from onceward_runtime import events, log
from onceward_runtime.sql import query

_BATCH = 5_000


class Mark(NamedTuple):
    """Rows of transactions before `xmin` may go once `lsn` is acknowledged."""

    xmin: str
    lsn: int


class Cleanup:
    """What to delete next; one object a connection of the relay, since positions of another server mean nothing."""

    def __init__(self, layout: Layout) -> None:
        self._mark_query = self._delete_query = sql.SQL("")
        self.mark: Mark | None = None
        self._enabled = layout.xid is not None
        if layout.xid is not None:
            names = {"table": sql.Identifier(layout.schema, layout.table), "xid": sql.Identifier(layout.xid)}
            self._mark_query = sql.SQL(query("onceward_outbox_relay", "mark_cleanup")).format(**names)  # type: ignore[assignment]
            self._delete_query = sql.SQL(query("onceward_outbox_relay", "clean")).format(**names)  # type: ignore[assignment]
        self.expiry_due = time.monotonic() + 5

    def step(self, connection: psycopg.Connection[Any], acknowledged: int) -> bool:
        """Delete what may go; returns whether there is likely more to do at once."""
        if self._enabled and self.mark is None:
            row = connection.execute(self._mark_query).fetchone()
            self.mark = None if row is None else Mark(row[0], lsn_of(row[1]))
        if self.mark is not None and acknowledged >= self.mark.lsn:
            started = time.monotonic()
            deleted = connection.execute(self._delete_query, (self.mark.xmin, _BATCH)).rowcount
            if deleted:
                log.emit(events.RELAY_CLEANED, rows=deleted, seconds=round(time.monotonic() - started, 3))
            if deleted == _BATCH:
                return True
            self.mark = None
        return False

    def expire(self, connection: psycopg.Connection[Any]) -> None:
        """Delete expired dedupe entries and parked rows decided long ago; looks every few seconds."""
        if time.monotonic() < self.expiry_due:
            return
        self.expiry_due = time.monotonic() + 5
        for name in ("clean_dedupe", "clean_parked"):
            if connection.execute(query("onceward_outbox_relay", name)).rowcount == _BATCH:
                self.expiry_due = 0.0
