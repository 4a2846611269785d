"""Dead letters as an operator looks at them: counted, listed, and one in full. Reads only; see dead_letter_decisions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple
from uuid import UUID

import psycopg
from psycopg.rows import class_row

from onceward_runtime.sql import query
from onceward_schemas.errors import DeadLetterError

STATES: Final = ("open", "replaying", "resolved", "discarded")
_PACKAGE: Final = "onceward_consumer"

Connection = psycopg.Connection[Any]


class Identity(NamedTuple):
    """A dead letter's name: one command may be dead in one group and done in another."""

    group: str
    command_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which dead letters; what is None does not matter."""

    group: str | None = None
    command_id: UUID | None = None
    lane: str | None = None
    type: str | None = None
    reason: str | None = None
    key: str | None = None
    run_id: UUID | None = None
    since: datetime | None = None
    """Given up on at this instant or later."""
    state: str | None = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A command given up on, without its payload."""

    consumer_group: str
    command_id: UUID
    lane: str
    key: str | None
    type: str | None
    version: int | None
    tenant: str | None
    run_id: UUID | None
    item: str | None
    reason: str
    cause: str | None
    """The reason of the last failure, where `reason` says that attempts or time were used up."""
    error: str | None
    attempts: int
    first_failed_at: datetime | None
    dead_at: datetime
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    payload_bytes: int | None
    headers: list[Any]
    """[name, text], as the engine stored them."""
    worker: str
    code_version: str | None
    state: str
    decided_by: str | None
    decided_because: str | None
    updated_at: datetime

    @property
    def identity(self) -> Identity:
        """Its group and command id."""
        return Identity(self.consumer_group, self.command_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heap:
    """Dead letters with the same group, lane, type, reason and cause."""

    consumer_group: str
    lane: str
    type: str | None
    reason: str
    cause: str | None
    count: int
    keys: int
    oldest: datetime
    newest: datetime
    last_error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One execution that failed."""

    attempt: int
    outcome: str
    reason: str
    error: str | None
    worker: str
    at: datetime


def find(connection: Connection, wanted: Filter, limit: int | None = None) -> list[DeadLetter]:
    """The dead letters that fit, oldest first."""
    with connection.cursor(row_factory=class_row(DeadLetter)) as cursor:
        return cursor.execute(_filtered("dead_letters_find"), _arguments(wanted, limit)).fetchall()


def identities(connection: Connection, wanted: Filter, limit: int | None = None) -> list[Identity]:
    """As `find`, the names only."""
    with connection.cursor() as cursor:
        rows = cursor.execute(_filtered("dead_letters_identities"), _arguments(wanted, limit)).fetchall()
    return [Identity(*row) for row in rows]


def heaps(connection: Connection, wanted: Filter, limit: int | None = None) -> list[Heap]:
    """The dead letters that fit, counted by group, lane, type, reason and cause; the largest heap first."""
    with connection.cursor(row_factory=class_row(Heap)) as cursor:
        return cursor.execute(_filtered("dead_letters_groups"), _arguments(wanted, limit)).fetchall()


def one(connection: Connection, command_id: UUID, group: str | None = None) -> DeadLetter:
    """The dead letter of a command, whatever its state.

    Raises: DeadLetterError where there is none, or one in each of several groups and `group` is None.
    """
    found = find(connection, Filter(group=group, command_id=command_id, state=None))
    if not found:
        where = f" of {group}" if group else ""
        raise DeadLetterError(
            f"No dead letter{where} has the id {command_id}.", remedy="See `onceward dlq list --state any`."
        )
    if len(found) > 1:
        names = ", ".join(sorted(letter.consumer_group for letter in found))
        raise DeadLetterError(f"{command_id} is a dead letter of several apps: {names}.", remedy="Name one with --app.")
    return found[0]


def attempts(connection: Connection, identity: Identity) -> list[Attempt]:
    """Its failed executions, oldest first."""
    with connection.cursor(row_factory=class_row(Attempt)) as cursor:
        return cursor.execute(query(_PACKAGE, "dead_letter_attempts"), identity._asdict()).fetchall()


def waiting(connection: Connection, identity: Identity) -> int | None:
    """How many commands of its key wait for a decision about it; None where its type's order is not strict."""
    row = connection.execute(query(_PACKAGE, "dead_letter_waiting"), identity._asdict()).fetchone()
    return None if row is None else int(row[0])


def payload(connection: Connection, identity: Identity) -> bytes | None:
    """The bytes of its record's value, as they were published."""
    row = connection.execute(query(_PACKAGE, "dead_letter_payload"), identity._asdict()).fetchone()
    return None if row is None else row[0]


def _filtered(name: str) -> str:
    return query(_PACKAGE, name).replace("{filter}", query(_PACKAGE, "dead_letters_filter"))


def _arguments(wanted: Filter, limit: int | None) -> dict[str, Any]:
    return asdict(wanted) | {"limit": limit}
