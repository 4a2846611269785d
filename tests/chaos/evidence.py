"""What a trial left: read from the tables of effects, the gateway's file, and what the group says of its dead letters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

import psycopg

from tests.chaos.gateway import Called, calls

_EFFECTS: Final = """
select id, key, number, attempt, pid, extract(epoch from at)::float8, {committed}, position
from chaos.effects order by position"""
_COMMITTED: Final = "extract(epoch from pg_xact_commit_timestamp(xmin))::float8"
_DEATHS: Final = """
select command_id, reason, state, extract(epoch from dead_at)::float8, extract(epoch from updated_at)::float8
from onceward.dead_letters where consumer_group = %s"""


class Effect(NamedTuple):
    """One effect: a row, or the first call with its idempotency key."""

    id: UUID
    key: str
    number: int
    attempt: int
    pid: int
    at: float
    """When the handler made it."""
    committed: float | None
    """When it became durable; None where the server does not keep that."""
    position: int


class Death(NamedTuple):
    """One dead letter."""

    id: UUID
    reason: str
    state: str
    at: float
    decided: float
    """When it was last touched: for a discarded one, when that was decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything the checker judges by."""

    published: dict[UUID, tuple[str, int]]
    """What was committed: key and number."""
    effects: list[Effect]
    deaths: dict[UUID, Death]
    parked: set[UUID] = field(default_factory=set)
    repeated_calls: int = 0
    mixed_keys: int = 0
    """Idempotency keys that more than one command had, or commands that had more than one."""


def gather(connection: psycopg.Connection[Any], group: str, gateway: str) -> Evidence:
    """Read it all; nothing may be under way any more."""
    [(tracked,)] = connection.execute("show track_commit_timestamp").fetchall()
    text = _EFFECTS.format(committed=_COMMITTED if tracked == "on" else "null::float8")
    rows = [Effect(*row) for row in connection.execute(text).fetchall()]
    first, repeats, mixed = _first(calls(gateway))
    published = connection.execute("select id, key, number from chaos.published").fetchall()
    deaths = [Death(*row) for row in connection.execute(_DEATHS, (group,)).fetchall()]
    parked = connection.execute("select command_id from onceward.parked where consumer_group = %s", (group,)).fetchall()
    return Evidence(
        published={identity: (key, number) for identity, key, number in published},
        effects=rows + first,
        deaths={death.id: death for death in deaths},
        parked={identity for (identity,) in parked},
        repeated_calls=repeats,
        mixed_keys=mixed,
    )


def _first(found: list[Called]) -> tuple[list[Effect], int, int]:
    """The first call of each idempotency key, how many others there were, and how many keys do not stand for one command."""
    effects: dict[str, Effect] = {}
    keys: dict[str, set[str]] = {}
    for position, call in enumerate(found):
        keys.setdefault(call.id, set()).add(call.idempotency_key)
        known = effects.get(call.idempotency_key)
        if known is None:
            made = Effect(UUID(call.id), call.key, call.number, call.attempt, call.pid, call.at, call.at, position)
            effects[call.idempotency_key] = made
        elif str(known.id) != call.id:
            keys[call.id].add("another command's")
    mixed = sum(len(each) > 1 for each in keys.values())
    return list(effects.values()), len(found) - len(effects), mixed
