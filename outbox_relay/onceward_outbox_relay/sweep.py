"""Reads the whole outbox in order of `seq` in one snapshot: what a new slot cannot know. Run while holding the slot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from onceward_outbox_relay.forward import Forwarder
from onceward_outbox_relay.kafka_sink import Batch, KafkaSink
from onceward_outbox_relay.layout import Layout
from onceward_outbox_relay.pgoutput import Column
from onceward_schemas.errors import DatabaseError

_FETCH = 1_000


def sweep(
    connection: psycopg.Connection[Any],
    layout: Layout,
    forwarder: Forwarder,
    sink: KafkaSink,
    pulse: Callable[[], None],
) -> int:
    """Forward every row of the table; on return all are settled. Returns how many there were.

    Writers hold their aggregate's lock while they insert, so within a key the order of `seq` is that of the commits.
    """
    if layout.seq is None:
        raise DatabaseError(
            f"The table {layout.schema}.{layout.table} has no column that orders its rows, so it cannot be swept.",
            remedy="Name one, or adopt the slot with `onceward outbox adopt`.",
        )
    waiting: deque[Batch] = deque()
    rows = 0
    with connection.transaction(), connection.cursor(binary=True) as cursor:
        cursor.execute("set transaction isolation level repeatable read, read only")
        cursor.execute(sql.SQL("declare swept no scroll cursor for {}").format(select(layout)))
        while found := fetch(cursor, sql.SQL(f"fetch {_FETCH} from swept")):
            columns, values = found
            if not values:
                break
            forwarder.columns(columns)
            batch = Batch(sink)
            waiting.append(batch)
            for row in values:
                forwarder.forward(row, batch)
            rows += len(values)
            sink.poll(0)
            pulse()
    settle(waiting, forwarder, sink, pulse)
    return rows


def settle(waiting: deque[Batch], forwarder: Forwarder, sink: KafkaSink, pulse: Callable[[], None]) -> None:
    """Wait until every row of the batches is in Kafka or parked. Raises: SinkFailedError."""
    while waiting:
        if waiting[0].settled == waiting[0].wanted:
            waiting.popleft()
            continue
        forwarder.tick()
        sink.flush(0.02)
        pulse()


def select(layout: Layout) -> sql.Composed:
    """The rows of the table in order."""
    assert layout.seq is not None
    return sql.SQL("select {} from {} order by {}").format(
        sql.SQL(", ").join(map(sql.Identifier, layout.columns)),
        sql.Identifier(layout.schema, layout.table),
        sql.Identifier(layout.seq),
    )


def fetch(
    cursor: psycopg.Cursor[Any], statement: sql.SQL | sql.Composed
) -> tuple[list[Column], list[list[bytes | None]]]:
    """Run a query on a binary cursor and return raw values, as the stream would bring them."""
    cursor.execute(statement)
    result = cursor.pgresult
    assert result is not None
    width = range(result.nfields)
    columns = [Column((result.fname(i) or b"").decode(), result.ftype(i)) for i in width]
    return columns, [[result.get_value(row, i) for i in width] for row in range(result.ntuples)]
