"""Outcomes to rows: everything that a group's outcomes imply, set-wise, for the same transaction (design D1). Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from onceward_consumer.deliveries import Address, Delivery, columns_of, headers_to_json, plain_text
from onceward_consumer.items import Engine, Item
from onceward_consumer.literals import written
from onceward_consumer.outcomes import BEYOND_LEDGER, Busy, Dead, Discarded, Done, Duplicate, Failed, Parked, Round
from onceward_consumer.policy import tier_for
from onceward_consumer.run_items import RECORD_ITEMS, RunItem
from onceward_consumer.run_items import arrays as run_item_arrays
from onceward_consumer.script import Statement
from onceward_producer.rows import INSERT_MANY, PUBLISH_DRAFTS, Draft, OutboxRow, draft_arrays
from onceward_producer.rows import arrays as outbox_arrays
from onceward_runtime.sql import query
from onceward_schemas import headers, topics
from onceward_schemas.envelope import Context

_LEDGER_SET: Final = query("onceward_consumer", "ledger_set")
_LEDGER_FORGET: Final = query("onceward_consumer", "ledger_forget")
_PARKED_ADD: Final = query("onceward_consumer", "parked_add")
_PARKED_REMOVE: Final = query("onceward_consumer", "parked_remove")
_PARKED_REASON: Final = query("onceward_consumer", "parked_reason")
_ATTEMPTS_ADD: Final = query("onceward_consumer", "attempts_add")
_DEAD_ADD: Final = query("onceward_consumer", "dead_letters_add")
_DEAD_RESOLVE: Final = query("onceward_consumer", "dead_letters_resolve")
_HOLDS_PUT: Final = query("onceward_consumer", "holds_put")
_HOLDS_REMOVE_LOCK: Final = query("onceward_consumer", "holds_remove_lock")
_HOLDS_REMOVE: Final = query("onceward_consumer", "holds_remove")
_HOLDS_DRAIN: Final = query("onceward_consumer", "holds_drain")

_STATES: Final = {Done: "done", Failed: "retrying", Dead: "dead", Discarded: "discarded", Parked: "parked"}


def statements(items: Sequence[Item], engine: Engine, now: datetime) -> list[Statement]:
    """The statements that make the items' outcomes durable, in the order in which they must run.

    `now` is not before the database's clock.
    """
    special = [item for item in items if type(item.outcome) is not Done or item.known or item.crashed]
    result: list[Statement] = []
    outbox: list[OutboxRow] = []
    drafts: list[Draft] = []
    run_items: list[RunItem] = []
    for item in items:
        if item.drafts and type(item.outcome) is Done:  # a call that was given up may still add some
            drafts += item.drafts
        if item.counted or item.run_items:
            _collect_run_items(item, engine, run_items)
    if special:
        result += _ledger(special, engine)
        result += _attempts(special, engine)
        result += _parked(special, engine)
        result += _dead_letters(special, engine)
        result += _holds(special, engine, now)
        outbox += _retry_records(special, engine, now)
        outbox += _dead_records(special, engine)
    if drafts:
        outbox += [draft.row for draft in drafts if draft.plain]
        if others := [draft for draft in drafts if not draft.plain]:
            result.append(Statement(PUBLISH_DRAFTS, draft_arrays(others)))
    if outbox:
        result.append(Statement(INSERT_MANY, outbox_arrays(outbox)))
    if run_items:
        result.append(Statement(RECORD_ITEMS, run_item_arrays(run_items)))
    return [written(statement) for statement in result]


def _collect_run_items(item: Item, engine: Engine, into: list[RunItem]) -> None:
    outcome = item.outcome
    if item.run_items and isinstance(outcome, Done):
        into += item.run_items
    if not item.counted or item.handler is None or item.envelope is None:
        return
    run_id, stage = item.envelope.run_id, item.handler.item_stage
    assert run_id is not None
    assert stage is not None
    match outcome:
        case Done():
            into += [RunItem(run_id, stage, each, "done", None, None, engine.group, item.id) for each in item.counted]
        case Dead() | Discarded():
            error = outcome.error if isinstance(outcome, Dead) else None
            into += [
                RunItem(run_id, stage, each, "failed", outcome.reason, error, engine.group, item.id)
                for each in item.counted
            ]
        case _:
            pass


def _ledger(items: Iterable[Item], engine: Engine) -> list[Statement]:
    """Rows whose state is not what the claim left. A command that must come again leaves no row of this transaction."""
    changed: list[Item] = []
    forgotten: list[UUID] = []
    for item in items:
        outcome = item.outcome
        if isinstance(outcome, Busy | Round):
            if not item.known:
                forgotten.append(item.id)
        elif not isinstance(outcome, Duplicate) and (item.known or not isinstance(outcome, Done)):
            changed.append(item)
    result = []
    if forgotten:
        result.append(Statement(_LEDGER_FORGET, (engine.group, forgotten)))
    if changed:
        result.append(
            Statement(
                _LEDGER_SET,
                {
                    "group": engine.group,
                    "ids": [i.id for i in changed],
                    "states": [_STATES[type(i.outcome)] for i in changed],
                    "attempts": [i.attempt + 1 if isinstance(i.outcome, Failed) else i.attempt for i in changed],
                    "before": [i.attempts_before for i in changed],
                    "reasons": [getattr(i.outcome, "reason", None) for i in changed],
                    "incarnations": [None] * len(changed),
                    "failed": [isinstance(i.outcome, (Failed, Dead)) for i in changed],
                },
            )
        )
    return result


def _attempts(items: Iterable[Item], engine: Engine) -> list[Statement]:
    rows: list[tuple[UUID, int, str, str, str | None]] = []
    for item in items:
        outcome = item.outcome
        if item.crashed:
            reason = "worker_lost" if item.died is None else "worker_killed"
            rows.append((item.id, item.attempt - 1, "crashed", reason, item.died))
        match outcome:
            case Failed():
                rows.append((item.id, item.attempt, "failed", outcome.reason, outcome.text))
            case Dead():
                rows.append((item.id, item.attempt, "dead", outcome.reason, outcome.text))
            case Discarded():
                rows.append((item.id, item.attempt, "discarded", outcome.reason, None))
            case _:
                pass
    if not rows:
        return []
    ids, attempts, outcomes, reasons, errors = (list(column) for column in zip(*rows, strict=True))
    return [
        Statement(
            _ATTEMPTS_ADD,
            {
                "group": engine.group,
                "worker": engine.worker,
                "ids": ids,
                "attempts": attempts,
                "outcomes": outcomes,
                "reasons": reasons,
                "errors": errors,
            },
        )
    ]


def crashes(items: Iterable[Item], engine: Engine) -> list[Statement]:
    """The attempts that ended with their workers, for commands that are about to run again."""
    return _attempts(items, engine)


def _parked(items: Sequence[Item], engine: Engine) -> list[Statement]:
    result = []
    left = [i.id for i in items if i.released and not isinstance(i.outcome, Parked | Busy)]
    if left:
        result.append(Statement(_PARKED_REMOVE, (engine.group, left)))
    moved = [i for i in items if i.released and isinstance(i.outcome, Parked) and i.outcome.reason != "held"]
    if moved:
        reasons = [i.outcome.reason for i in moved]  # type: ignore[union-attr]
        result.append(Statement(_PARKED_REASON, ([i.id for i in moved], reasons, engine.group)))
    new = [i for i in items if isinstance(i.outcome, Parked) and not i.released]
    if new:
        values = {"reasons": [i.outcome.reason for i in new], "attempts": [i.attempt for i in new]}  # type: ignore[union-attr]
        result.append(Statement(_PARKED_ADD, {"group": engine.group} | _records(new) | values))
    return result


def _records(items: Sequence[Item]) -> dict[str, list[Any]]:
    """Identity, coordinates and original bytes, as columns."""
    deliveries: list[Delivery] = [item.delivery for item in items]
    return {
        "ids": [i.id for i in items],
        "lanes": [d.lane for d in deliveries],
        "keys": [d.key_text for d in deliveries],
        "topics": [d.topic for d in deliveries],
        "partitions": [d.partition for d in deliveries],
        "offsets": [d.offset for d in deliveries],
        "timestamps": [d.timestamp_ms for d in deliveries],
        "record_keys": [d.key for d in deliveries],
        "payloads": [d.payload for d in deliveries],
        "headers": [headers_to_json(d.headers) for d in deliveries],
    }


def _dead_letters(items: Sequence[Item], engine: Engine) -> list[Statement]:
    result = []
    dead = [i for i in items if isinstance(i.outcome, Dead)]
    if dead:
        envelopes = [i.envelope for i in dead]
        values: dict[str, Any] = {
            "group": engine.group,
            "worker": engine.worker,
            "code_version": engine.code_version,
            "types": [e and e.type for e in envelopes],
            "versions": [e and e.version for e in envelopes],
            "tenants": [e and e.tenant for e in envelopes],
            "run_ids": [e and e.run_id for e in envelopes],
            "items": [e and e.context.item for e in envelopes],
            "reasons": [i.outcome.reason for i in dead],  # type: ignore[union-attr]
            "causes": [i.outcome.cause for i in dead],  # type: ignore[union-attr]
            "errors": [i.outcome.text for i in dead],  # type: ignore[union-attr]
            "attempts": [i.attempt for i in dead],
            "first_failed": [i.first_failed_at for i in dead],
        }
        result.append(Statement(_DEAD_ADD, _records(dead) | values))
    for kind, state in ((Done, "resolved"), (Discarded, "discarded")):
        if ended := [i.id for i in items if i.known and type(i.outcome) is kind]:
            result.append(Statement(_DEAD_RESOLVE, (state, engine.group, ended)))
    return result


def holds_changed(
    items: Iterable[Item], now: datetime
) -> tuple[dict[Address, tuple[str, UUID, datetime | None]], set[Address]]:
    """Keys to hold, each with state, head and instant, and held keys whose head is resolved.

    A released follower that ends well leaves its hold to the release loop, which knows whether it was the last.
    """
    put: dict[Address, tuple[str, UUID, datetime | None]] = {}
    resolved: set[Address] = set()
    for item in items:
        address = item.delivery.address
        outcome = item.outcome
        if address is None:
            continue
        if not item.ordered:
            if item.heads and isinstance(outcome, Failed | Done | Dead | Discarded):
                resolved.add(address)  # its type has lost its order since
            continue
        if item.unresolved:
            put[address] = ("retrying", item.id, None)
            resolved.discard(address)
        elif isinstance(outcome, Failed):
            put[address] = ("retrying", item.id, now + outcome.delay)
            resolved.discard(address)
        elif (
            isinstance(outcome, Dead)
            and item.handler is not None
            and item.handler.order == "strict"
            and item.command is not None
            and outcome is not BEYOND_LEDGER
        ):
            put[address] = ("dead", item.id, None)
            resolved.discard(address)
        elif item.heads and isinstance(outcome, Done | Dead | Discarded):
            resolved.add(address)
    return put, resolved


def _holds(items: Sequence[Item], engine: Engine, now: datetime) -> list[Statement]:
    put, resolved = holds_changed(items, now)
    result = []
    if put:
        lanes, keys = ([address[n] for address in put] for n in (0, 1))
        states, heads, due = ([value[n] for value in put.values()] for n in (0, 1, 2))
        result.append(
            Statement(
                _HOLDS_PUT,
                {"group": engine.group, "lanes": lanes, "keys": keys, "states": states, "heads": heads, "due": due},
            )
        )
    if resolved:
        result += let_go(sorted(resolved), engine.group)
    return result


def let_go(addresses: Sequence[Address], group: str) -> list[Statement]:
    """Remove holds, or set them draining where followers are parked; each statement sees what parkers committed."""
    columns = columns_of(addresses, group)
    return [written(Statement(text, columns)) for text in (_HOLDS_REMOVE_LOCK, _HOLDS_REMOVE, _HOLDS_DRAIN)]


def _retry_records(items: Iterable[Item], engine: Engine, now: datetime) -> list[OutboxRow]:
    rows = []
    for item in items:
        outcome, handler, envelope = item.outcome, item.handler, item.envelope
        if isinstance(outcome, Failed) and handler is not None and envelope is not None:
            topic = topics.tier(item.delivery.lane, engine.group, tier_for(handler.retry, outcome.delay))
            context = dataclasses.replace(envelope.context, due_at=now + outcome.delay, group=engine.group)
            rows.append(record(item, topic, item.attempt + 1, context))
        elif isinstance(outcome, Round) and handler is not None and envelope is not None:
            left = (envelope.context.due_at or now) - now
            topic = topics.tier(item.delivery.lane, engine.group, tier_for(handler.retry, left))
            rows.append(record(item, topic, item.attempt, envelope.context))
    return rows


def _dead_records(items: Iterable[Item], engine: Engine) -> list[OutboxRow]:
    rows = []
    for item in items:
        if isinstance(item.outcome, Dead):
            topic = topics.dead_letter(item.delivery.lane, engine.group)
            context = item.envelope.context if item.envelope is not None else None
            if context is not None and (context.due_at is not None or context.group is not None):
                context = dataclasses.replace(context, due_at=None, group=None)
            rows.append(record(item, topic, item.attempt, context))
    return rows


def record(item: Item, topic: str, attempt: int, context: Context | None) -> OutboxRow:
    """A record with the command's identity and original bytes."""
    envelope, delivery = item.envelope, item.delivery
    aggregate = item.handler.command.SCHEMA.aggregate if item.handler is not None else delivery.lane
    return OutboxRow(
        id=item.id,
        aggregatetype=aggregate,
        aggregateid=None if delivery.key is None else plain_text(delivery.key),
        type=envelope.type if envelope is not None else _type_of(delivery),
        payload=delivery.payload,
        topic=topic,
        version=envelope.version if envelope is not None else 1,
        attempt=attempt,
        tenant=envelope.tenant if envelope is not None else None,
        run_id=envelope.run_id if envelope is not None else None,
        traceparent=envelope.traceparent if envelope is not None else None,
        context=context.to_json() if context is not None else None,
    )


def _type_of(delivery: Delivery) -> str:
    """What an unreadable record calls itself, as far as that can be told."""
    for name, value in delivery.headers:
        if name == headers.TYPE and value:
            return value.decode("utf-8", "replace").replace("\0", "")[:200] or "unknown"
    return "unknown"
