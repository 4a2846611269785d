"""Starting a bulk operation (a run) in the caller's transaction, and replaying what failed of it.

A run counts items by identity. Workers record items with their effects; `RunKeeper` completes the run and publishes the
follow-up, once in the run's life.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus

from onceward_producer.rows import Encoder, OutboxRow, row
from onceward_runtime.sql import query
from onceward_schemas.command import Command
from onceward_schemas.errors import RunError, TransactionError
from onceward_schemas.ids import new_id

_MAX_PARAMS_BYTES = 64 * 1024
_PACKAGE = "onceward_consumer"


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The run that stands for the request; `duplicate` when an earlier request had started it."""

    id: UUID
    duplicate: bool


class Runs:
    """Starts runs. One per application; holds nothing but the codec for follow-up commands."""

    def __init__(self, codec: Encoder) -> None:
        self._codec = codec

    def start(
        self,
        transaction: Any,
        kind: str,
        params: Mapping[str, Any] | None = None,
        *,
        expected: int | Mapping[str, int],
        business_key: str | None = None,
        follow_up: Command | None = None,
        created_by: str | None = None,
    ) -> StartedRun:
        """Insert a run in the caller's open transaction: a psycopg connection, or SQLAlchemy's Session or Connection.

        `expected` counts the items of each stage; a number alone means one stage, `items`. A second start with the same
        kind and business key returns the first run and changes nothing. The follow-up is encoded now and published when
        every stage has its items, whether done or failed.

        Raises: RunError for a wrong argument, InvalidCommandError for a wrong follow-up.
        """
        connection = _driver_connection(transaction)
        run_id = new_id()
        stages = _stages(expected)
        arguments = {
            "id": run_id,
            "kind": _named("kind", kind),
            "business_key": None if business_key is None else _named("business_key", business_key),
            "params": _params(params or {}),
            "follow_up": None if follow_up is None else _stored(self._follow_up(run_id, follow_up)),
            "created_by": created_by,
            "stages": list(stages),
            "expected": list(stages.values()),
        }
        if connection.execute(query(_PACKAGE, "run_start"), arguments).fetchone():
            return StartedRun(run_id, duplicate=False)
        found = connection.execute(query(_PACKAGE, "run_of_business_key"), arguments).fetchone()
        if found is None:
            raise RunError(
                f"The run {kind!r} with business key {business_key!r} was removed meanwhile.", remedy="Start it again."
            )
        return StartedRun(found[0], duplicate=True)

    def _follow_up(self, run_id: UUID, command: Command) -> OutboxRow:
        return row(command, self._codec, run_id=run_id, idempotency_key=f"run:{run_id}:completed")


def reopen(connection: psycopg.Connection[Any], group: str, command_ids: list[UUID]) -> int:
    """Say that these dead letters are replayed: their failed items wait again and their runs are open again.

    Call it in the transaction that replays. Returns how many items.
    """
    arguments = {"group": group, "command_ids": command_ids}
    connection.execute(query(_PACKAGE, "runs_lock_of_commands"), arguments)
    found = connection.execute(query(_PACKAGE, "run_items_retrying"), arguments).fetchone()
    return int(found[0]) if found else 0


def stored_follow_up(stored: Mapping[str, Any]) -> OutboxRow:
    """Read a follow-up back as the row to insert, under an id of the present: the ledger reaches back weeks, not months."""
    values = dict(stored) | {"id": new_id(), "run_id": UUID(stored["run_id"])}
    values["payload"] = base64.b64decode(stored["payload"])
    return OutboxRow(**values)


def _stored(outbox_row: OutboxRow) -> str:
    values = outbox_row._asdict() | {"id": None, "run_id": str(outbox_row.run_id)}
    values["payload"] = base64.b64encode(outbox_row.payload or b"").decode()
    return json.dumps(values)


def _driver_connection(transaction: Any) -> psycopg.Connection[Any]:
    """The psycopg connection of an open transaction, SQLAlchemy's Session and Connection unwrapped."""
    inner = transaction
    if hasattr(inner, "in_transaction") and not inner.in_transaction():
        raise TransactionError("No transaction is open.", remedy="Start the run inside `with session.begin():`.")
    if callable(connection_of := getattr(inner, "connection", None)):  # a Session
        inner = connection_of()
    if (pooled := getattr(inner, "connection", None)) is not None:
        inner = getattr(pooled, "driver_connection", inner)
    if not isinstance(inner, psycopg.Connection):
        raise TransactionError(
            f"A run cannot be started with a {type(transaction).__name__}.",
            remedy="Pass a psycopg.Connection, or a SQLAlchemy Session or Connection on the psycopg driver.",
        )
    if inner.autocommit and inner.info.transaction_status == TransactionStatus.IDLE:
        raise TransactionError(
            "No transaction is open.", remedy="Start the run inside `with connection.transaction():`."
        )
    return inner


def _stages(expected: int | Mapping[str, int]) -> dict[str, int]:
    stages = {"items": expected} if isinstance(expected, int) else dict(expected)
    if not stages:
        raise RunError("expected names no stage.", remedy='Pass a number, or for instance {"changed": 8000}.')
    for name, count in stages.items():
        _named("expected", name)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < 2**31:
            raise RunError(f"expected[{name!r}] is {count!r}.", remedy="Pass the number of items, 0 or more.")
    return stages


def _named(field: str, value: str) -> str:
    if not isinstance(value, str) or not value.strip() or len(value) > 200 or "\0" in value:
        raise RunError(f"{field} has the name {str(value)[:40]!r}.", remedy="Use 1 to 200 characters.")
    return value


def _params(params: Mapping[str, Any]) -> str:
    try:
        text = json.dumps(dict(params), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RunError(
            f"params cannot be written as JSON: {error}.", remedy="Pass text, numbers, lists and mappings."
        ) from None
    if "\\u0000" in text:
        raise RunError("params hold a NUL character, which PostgreSQL does not store.", remedy="Remove it.")
    if len(text.encode()) > _MAX_PARAMS_BYTES:
        raise RunError(
            f"params take {len(text.encode())} bytes, more than {_MAX_PARAMS_BYTES}.",
            remedy="Store the data and pass a reference to it.",
        )
    return text
