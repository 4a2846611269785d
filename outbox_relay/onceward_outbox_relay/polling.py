"""The relay without replication rights: one leader by advisory lock reads the table in order and deletes what Kafka has.

No cursor over `seq` and no skipping of locked rows: a row may be committed later than one with a higher number, so every
round begins at the lowest row there is. Writers hold their aggregate's lock, so within a key the order holds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import errors, sql

from onceward_outbox_relay import parking, slot
from onceward_outbox_relay.cleanup import Cleanup
from onceward_outbox_relay.forward import Forwarder
from onceward_outbox_relay.kafka_sink import Batch, KafkaSink
from onceward_outbox_relay.layout import Layout
from onceward_outbox_relay.stream import DrainTimeoutError
from onceward_outbox_relay.sweep import fetch, select, settle
from onceward_runtime import events, log
from onceward_runtime.service import Loop
from onceward_runtime.settings import Settings
from onceward_runtime.sql import query
from onceward_schemas.errors import DatabaseError

if TYPE_CHECKING:
    from onceward_outbox_relay.relay import RelayOptions

_ROWS = 5_000
_CHUNK_ROWS = 500
CHANNEL = "onceward_outbox"
"""Whoever notifies it wakes an idle relay before its interval is over; the relay puts a trigger on the table if it may."""


def check_table(connection: psycopg.Connection[Any], layout: Layout) -> None:
    """Raises: psycopg.errors.UndefinedTable."""
    connection.execute(sql.SQL("select from {} limit 0").format(sql.Identifier(layout.schema, layout.table)))


def poll(
    settings: Settings,
    options: RelayOptions,
    loop: Loop,
    connection: psycopg.Connection[Any],
    forwarder: Forwarder,
    sink: KafkaSink,
    set_state: Callable[[bool], None],
) -> None:
    """Relay until asked to stop. Raises what a stream does; every row not deleted will be read again."""
    layout = options.layout
    if layout.seq is None:
        raise DatabaseError("A table without a column that orders its rows cannot be polled.", remedy="Name one.")
    if not _lead(settings, loop, connection, set_state):
        return
    _wake_by_trigger(connection, layout)
    connection.execute(sql.SQL("listen {}").format(sql.Identifier(CHANNEL)))
    log.emit(events.RELAY_ACTIVE, slot=settings.slot, mode="poll")
    set_state(True)
    forwarder.rewound()
    forwarder.attach(connection, lambda: _pulse(loop, sink))
    relayed = events.RELAY_ROWS.labels(slot=settings.slot, outcome="relayed")
    expiry = Cleanup(layout)
    look_at_parked = 0.0
    while not loop.stopping:
        loop.beat()
        rows = _round(connection, layout, forwarder, sink, lambda: _pulse(loop, sink))
        relayed.inc(rows)
        if forwarder.blocked and time.monotonic() >= look_at_parked:
            look_at_parked = time.monotonic() + 1
            if parking.releasable_keys(connection):
                forwarder.release()
        expiry.expire(connection)
        if rows < _ROWS:
            for _ in connection.notifies(timeout=0 if rows else options.poll_interval.total_seconds(), stop_after=1):
                pass


def _lead(
    settings: Settings, loop: Loop, connection: psycopg.Connection[Any], set_state: Callable[[bool], None]
) -> bool:
    """Become the one relay of this slot name; wait while there is another, a streaming one included."""
    said = False
    while not loop.stopping:
        state = slot.look_up(connection, settings.slot)
        streaming = state.active_pid if state is not None else None
        row = connection.execute(query("onceward_outbox_relay", "lead"), (settings.slot,)).fetchone()
        if streaming is None and row is not None and row[0]:
            return True
        if row is not None and row[0]:
            connection.execute("select pg_advisory_unlock_all()")
        if not said:
            said = True
            set_state(False)
            log.emit(events.RELAY_STANDBY, slot=settings.slot, pid=streaming)
        loop.wait(0.2)
    return False


def _round(
    connection: psycopg.Connection[Any],
    layout: Layout,
    forwarder: Forwarder,
    sink: KafkaSink,
    pulse: Callable[[], None],
) -> int:
    """Read the first rows, send them, wait until Kafka has them, delete them."""
    assert layout.seq is not None
    with connection.cursor(binary=True) as cursor:
        columns, values = fetch(cursor, select(layout) + sql.SQL(" limit {}").format(_ROWS))
    if not values:
        return 0
    forwarder.columns(columns)
    batches: deque[Batch] = deque()
    for at in range(0, len(values), _CHUNK_ROWS):
        batches.append(batch := Batch(sink))
        for row in values[at : at + _CHUNK_ROWS]:
            forwarder.forward(row, batch)
        sink.poll(0)
        pulse()
    parked = forwarder.parked
    settle(batches, forwarder, sink, pulse)
    if len(values) > forwarder.parked - parked:
        sink.heard()
    seq = layout.columns.index(layout.seq)
    numbers = [int.from_bytes(row[seq] or b"", signed=True) for row in values]
    delete = sql.SQL("delete from {} where {} = any (%s)").format(
        sql.Identifier(layout.schema, layout.table), sql.Identifier(layout.seq)
    )
    connection.execute(delete, (numbers,))
    return len(values)


def _pulse(loop: Loop, sink: KafkaSink) -> None:
    loop.beat()
    if loop.stopping and sink.outstanding == 0:
        raise DrainTimeoutError


def _wake_by_trigger(connection: psycopg.Connection[Any], layout: Layout) -> None:
    """Let inserts wake us, where the role may change the table; else the interval has to do."""
    try:
        with connection.transaction():
            connection.execute("set local lock_timeout = '2s'")
            row = connection.execute(
                query("onceward_outbox_relay", "has_trigger"), (layout.schema, layout.table)
            ).fetchone()
            if row is None:
                connection.execute(query("onceward_outbox_relay", "wake_function"))
                connection.execute(
                    sql.SQL(
                        "create trigger onceward_wake_relay after insert on {} "
                        "for each statement execute function onceward.wake_relay()"
                    ).format(sql.Identifier(layout.schema, layout.table))
                )
    except (
        errors.InsufficientPrivilege,
        errors.LockNotAvailable,
        errors.DuplicateObject,
        errors.UniqueViolation,
    ) as error:
        log.emit(events.RELAY_POLLING, reason=f"no trigger wakes the relay: {error.diag.message_primary}")
