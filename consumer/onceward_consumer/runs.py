"""Starting a bulk operation (a run) in the caller's transaction, and replaying what failed of it.

A run counts items by identity. Workers record items with their effects; `RunKeeper` completes the run and publishes the
follow-up, once in the run's life.
"""

from __future__ import annotations

import base64
import difflib
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, overload
from uuid import UUID

import psycopg

from onceward_producer.doors import run, run_async
from onceward_producer.outbox import AsyncTransaction, SyncTransaction
from onceward_producer.psycopg_door import AsyncPsycopgDoor, PsycopgDoor
from onceward_producer.rows import Encoder, OutboxRow, row
from onceward_producer.work import Execute, Warm, Work
from onceward_runtime.sql import query
from onceward_schemas.command import Command
from onceward_schemas.errors import RunError
from onceward_schemas.ids import new_id

Expected: TypeAlias = int | Mapping[str, int]
"""Items of the only stage, or of each stage in order."""

_MAX_PARAMS_BYTES = 64 * 1024
_PACKAGE = "onceward_consumer"
_LOG = logging.getLogger("onceward.runs")


@dataclass(frozen=True, slots=True)
class StartedRun:
    """The run that stands for the request; `duplicate` when an earlier request had started it."""

    id: UUID
    duplicate: bool


class Runs:
    """Starts runs. One per application."""

    def __init__(self, codec: Encoder, declared: Callable[[], Collection[str]] = tuple) -> None:
        """Take the codec for follow-up commands, and how to ask which stages the app's handlers declare."""
        self._codec = codec
        self._declared = declared

    @overload
    def start(
        self,
        transaction: SyncTransaction,
        kind: str,
        params: Mapping[str, Any] | None = None,
        *,
        expected: Expected,
        business_key: str | None = None,
        follow_up: Command | None = None,
        created_by: str | None = None,
    ) -> StartedRun: ...
    @overload
    def start(
        self,
        transaction: AsyncTransaction,
        kind: str,
        params: Mapping[str, Any] | None = None,
        *,
        expected: Expected,
        business_key: str | None = None,
        follow_up: Command | None = None,
        created_by: str | None = None,
    ) -> Awaitable[StartedRun]: ...
    def start(
        self,
        transaction: SyncTransaction | AsyncTransaction,
        kind: str,
        params: Mapping[str, Any] | None = None,
        *,
        expected: Expected,
        business_key: str | None = None,
        follow_up: Command | None = None,
        created_by: str | None = None,
    ) -> StartedRun | Awaitable[StartedRun]:
        """Insert a run in the caller's open transaction, any that `outbox.publish` takes.

        `expected` counts the items of each stage; a number alone means one stage, `items`. A second start with the same
        kind and business key returns the first run and changes nothing. The follow-up is encoded now and published when
        every stage has its items, whether done or failed; once, also where failed items are retried after that.
        A stage whose name looks like a slip for one that a handler declares is logged as a warning, not refused:
        other apps and `ctx.items_done` may count it.

        Raises: RunError for a wrong argument, and what `outbox.publish` raises.
        """
        stages = _stages(expected)
        for warning in doubtful_stages(expected, self._declared()):
            _LOG.warning("The run %r %s", kind, warning)
        wanted = _Wanted(
            id=new_id(),
            kind=_named("kind", kind),
            business_key=None if business_key is None else _named("business_key", business_key),
            params=_params(params or {}),
            follow_up=follow_up,
            created_by=created_by,
            stages=list(stages),
            expected=list(stages.values()),
        )
        return _carried_out(transaction, self._start(wanted))

    def _start(self, wanted: _Wanted) -> Work[StartedRun]:
        stored: list[str] = []

        def encode() -> None:
            if wanted.follow_up is not None:
                key = f"run:{wanted.id}:completed"
                stored.append(_stored(row(wanted.follow_up, self._codec, run_id=wanted.id, idempotency_key=key)))

        yield Warm(encode)
        inserted = yield Execute(
            query(_PACKAGE, "run_start"),
            (
                wanted.id,
                wanted.kind,
                wanted.business_key,
                wanted.params,
                stored[0] if stored else None,
                wanted.created_by,
                wanted.stages,
                wanted.expected,
            ),
            fetch=True,
        )
        if inserted:
            return StartedRun(wanted.id, duplicate=False)
        found = yield Execute(query(_PACKAGE, "run_of_business_key"), (wanted.kind, wanted.business_key), fetch=True)
        if not found:
            raise RunError(
                f"The run {wanted.kind!r} with business key {wanted.business_key!r} was removed meanwhile.",
                remedy="Start it again.",
            )
        return StartedRun(UUID(str(found[0][0])), duplicate=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    id: UUID
    kind: str
    business_key: str | None
    params: str
    follow_up: Command | None
    created_by: str | None
    stages: list[str]
    expected: list[int]


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


def _carried_out(transaction: Any, work: Work[StartedRun]) -> StartedRun | Awaitable[StartedRun]:
    if isinstance(transaction, psycopg.Connection):
        return run(PsycopgDoor(transaction), work)
    if isinstance(transaction, psycopg.AsyncConnection):
        return run_async(AsyncPsycopgDoor(transaction), work)
    from onceward_producer.sqlalchemy_door import carried_out  # a service on psycopg alone does not load SQLAlchemy

    return carried_out(transaction, work)


def doubtful_stages(expected: Expected, declared: Collection[str]) -> list[str]:
    """What to say of stages that probably nobody counts, so that the run would never end.

    >>> doubtful_stages({"invoice": 2, "paid": 2}, ["invoiced"])
    ["expects items of the stage 'invoice'; the app's handlers count 'invoiced'."]
    >>> doubtful_stages(2, ["invoiced", "items"])
    []
    """
    found = []
    for stage in _stages(expected):
        if stage in declared:
            continue
        near = sorted(declared) if isinstance(expected, int) else difflib.get_close_matches(stage, declared, n=1)
        if near:
            counted = ", ".join(map(repr, near))
            found.append(f"expects items of the stage {stage!r}; the app's handlers count {counted}.")
    return found


def _stages(expected: Expected) -> dict[str, int]:
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
