"""Sends parked commands round again once the reason is gone: a handler was deployed, a schema was registered.

They go through the outbox to their lane, for this group only, so that they pass the owner of their key like any record.
One with a key is its head until then (settle). An operator who gives one up sets its reason to `discard`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import psycopg

from onceward_consumer.deliveries import Delivery
from onceward_consumer.items import RESOLVABLE, Engine, Item, prepared
from onceward_consumer.outcomes import Busy, Parked
from onceward_consumer.release import delivery_of
from onceward_consumer.settle import record
from onceward_producer.rows import INSERT_MANY, arrays
from onceward_runtime.sql import query
from onceward_schemas.envelope import Context

_DISCARD: Final = "discard"
_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)
_PAGE: Final = 500
_PAGES: Final = 20
_RESOLVABLE: Final = query("onceward_consumer", "parked_resolvable")
_REQUEUE: Final = query("onceward_consumer", "ledger_requeue")
_REMOVE: Final = query("onceward_consumer", "parked_remove")


def requeue_resolved(connection: psycopg.Connection[Any], engine: Engine) -> int:
    """Send round what can be run now, and return how many that were; each page is one transaction."""
    total = 0
    for reason in (*sorted(RESOLVABLE), _DISCARD):
        after = 0
        for _ in range(_PAGES):
            with connection.transaction():
                rows = connection.execute(_RESOLVABLE, (engine.group, reason, after, _PAGE)).fetchall()
                total += requeue(connection, rows, engine, discard=reason == _DISCARD)
            if len(rows) < _PAGE:
                break
            after = rows[-1][0]
    return total


def requeue(connection: psycopg.Connection[Any], rows: Sequence[Any], engine: Engine, *, discard: bool = False) -> int:
    """Send rows of parked_resolvable round, within the caller's transaction, where they can be run now."""
    items: dict[Any, Item] = {}
    for row in rows:
        delivery: Delivery = delivery_of(row[1:], engine)
        item = prepared(delivery, engine)
        if discard or not isinstance(item.given, Parked | Busy):
            item.attempt = row[-1]
            items[item.id] = item
    if not items:
        return 0
    moved = {row[0] for row in connection.execute(_REQUEUE, (engine.group, list(items))).fetchall()}
    connection.execute(_REMOVE, (engine.group, list(items)))
    outbox = []
    for item in items.values():  # in the order of their arrival
        if item.id not in moved:
            continue
        context = item.envelope.context if item.envelope is not None else Context()
        if discard:
            context = dataclasses.replace(context, deadline=_LONG_AGO)
        outbox.append(
            record(
                item, item.delivery.lane, item.attempt, dataclasses.replace(context, group=engine.group, due_at=None)
            )
        )
    if outbox:
        connection.execute(INSERT_MANY, arrays(outbox))
    return len(outbox)
