"""Dead letters for tests, with their ledger rows, as the engine leaves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from onceward_consumer.dead_letters import Identity
from onceward_consumer.deliveries import headers_to_json
from onceward_schemas.envelope import Context, Envelope
from onceward_schemas.ids import new_id

_DEAD_LETTER = """
insert into onceward.dead_letters (
    consumer_group, command_id, lane, key, type, version, run_id, item, reason, error, attempts, dead_at, topic, partition,
    "offset", timestamp_ms, record_key, payload, headers, worker
) values (
    %(group)s, %(id)s, %(lane)s, %(key)s, %(type)s, 1, %(run_id)s, %(item)s, %(reason)s, %(error)s, %(attempts)s,
    now() - make_interval(hours => %(hours_ago)s), %(lane)s, 0, 0, 0, %(record_key)s, %(payload)s, %(headers)s, 'w1'
)"""
_LEDGER = """
insert into onceward.ledger (command_id, consumer_group, state, attempt, reason, first_failed_at)
values (%(id)s, %(group)s, 'dead', %(attempts)s, %(reason)s, now())"""

_FROM_SCREEN = Context(origin="screen")


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a dead letter is like; the rest has defaults."""

    group: str = "hr"
    lane: str = "hr.moves"
    key: str | None = "ann"
    type: str = "test.Move"
    reason: str = "http_404"
    error: str = "ClientError: 404"
    attempts: int = 3
    payload: bytes | None = b"\0\0\0\0\1payload"
    run_id: UUID | None = None
    item: str | None = None
    hours_ago: int = 0
    more_headers: tuple[tuple[str, bytes | None], ...] = ()
    context: Context = _FROM_SCREEN
    id: UUID | None = None
    in_ledger: bool = True


def bury(connection: psycopg.Connection[Any], given: Given) -> Identity:
    """Put the dead letter into the database."""
    command_id = given.id or new_id()
    envelope = Envelope(
        id=command_id,
        type=given.type,
        attempt=given.attempts,
        run_id=given.run_id,
        tenant="acme",
        context=given.context,
    )
    pairs = [(name, None if value is None else str(value).encode()) for name, value in envelope.columns().items()]
    values = vars(given) | {
        "id": command_id,
        "record_key": given.key and given.key.encode(),
        "headers": headers_to_json([*pairs, *given.more_headers]),
    }
    connection.execute(_DEAD_LETTER, values)
    if given.in_ledger:
        connection.execute(_LEDGER, values)
    return Identity(given.group, command_id)
