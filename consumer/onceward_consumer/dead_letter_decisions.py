"""What an operator decides about dead letters: replay or discard. Each call is one transaction, and decides each once.

A replay goes through the outbox to the lane's main topic, with the original bytes, for this group only; so it runs in
its key's partition, in order with the key's newer commands. A crash before the commit leaves everything as it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from psycopg.rows import dict_row

from onceward_consumer.dead_letters import Connection, Identity
from onceward_consumer.deliveries import headers_from_json, plain_text
from onceward_consumer.runs import reopen
from onceward_consumer.settle import let_go
from onceward_producer.rows import INSERT_MANY, OutboxRow, arrays
from onceward_runtime.sql import query
from onceward_schemas import headers
from onceward_schemas.envelope import Envelope
from onceward_schemas.errors import DeadLetterError, UndecodableError

BATCH: Final = 500
"""How many to decide in one call: what one transaction should lock at most."""
_PACKAGE: Final = "onceward_consumer"
_NOT_OPEN: Final = {
    "replaying": "is being replayed already",
    "resolved": "is resolved: a replay of it went through",
    "discarded": "is discarded already",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """A dead letter that was left as it is, and why."""

    identity: Identity
    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of those that were named."""

    done: tuple[Identity, ...]
    refused: tuple[Refusal, ...]


@dataclass(slots=True)
class _Letter:
    """A locked row."""

    identity: Identity
    lane: str
    key: str | None
    type: str | None
    attempts: int
    record_key: bytes | None
    payload: bytes | None
    headers: Any
    state: str
    decided_by: str | None
    replayed: OutboxRow | None = None


def replay(connection: Connection, named: Iterable[Identity], *, by: str, because: str | None = None) -> Decision:
    """Send dead letters back to their lanes, with their attempts and time limit beginning anew.

    On return they are `replaying` and their records are in the outbox. Those of one key run in order of publishing. A
    letter is refused that is not open, or whose headers or key could not be read when it came.
    """

    def prepare(letters: list[_Letter]) -> dict[Identity, str]:
        refused = {}
        for letter in letters:
            try:
                letter.replayed = _record(letter)
            except UndecodableError as error:
                refused[letter.identity] = f"cannot be replayed: {error.message} Publish the command anew"
        return refused

    with connection.transaction():
        decision, letters, attempts = _decide(connection, named, "replaying", 1, by, because, prepare)
        if letters:
            rows = [
                letter.replayed._replace(attempt=attempts[letter.identity]) for letter in letters if letter.replayed
            ]
            connection.execute(query(_PACKAGE, "dead_letters_lock_holds"), _columns(decision.done))  # in their order
            connection.execute(query(_PACKAGE, "dead_letters_retry_holds"), _columns(decision.done))
            connection.execute(INSERT_MANY, arrays(rows))
            for group in sorted({identity.group for identity in decision.done}):
                reopen(connection, group, [i.command_id for i in decision.done if i.group == group])
    return decision


def discard(connection: Connection, named: Iterable[Identity], *, by: str, because: str) -> Decision:
    """Give dead letters up for good. Followers of a key that one of them held (strict order) are released.

    Raises: DeadLetterError where no reason is given.
    """
    if not because.strip():
        raise DeadLetterError("A discarded command needs a reason.", remedy='Add --because "...".')
    with connection.transaction():
        decision, letters, _ = _decide(connection, named, "discarded", 0, by, because.strip(), lambda _: {})
        if letters:
            _let_go(connection, decision.done)
    return decision


def _let_go(connection: Connection, decided: Iterable[Identity]) -> None:
    """Free the keys that these letters held: followers that are parked are run in sequence by the group's workers."""
    held = connection.execute(query(_PACKAGE, "dead_letters_lock_holds"), _columns(decided)).fetchall()
    for group in sorted({row[0] for row in held}):
        for statement in let_go([(row[1], row[2]) for row in held if row[0] == group], group):
            connection.execute(statement.query, statement.params)


def _decide(
    connection: Connection,
    named: Iterable[Identity],
    state: str,
    step: int,
    by: str,
    because: str | None,
    prepare: Callable[[list[_Letter]], dict[Identity, str]],
) -> tuple[Decision, list[_Letter], dict[Identity, int]]:
    """Lock, refuse what cannot be decided, and move letters and ledger to the new state.

    Returns the letters decided, in order of publishing, and the attempt that the ledger now stands at.
    """
    named = tuple(dict.fromkeys(named))
    letters = _locked(connection, named)
    refused = dict.fromkeys(named, "is not a dead letter") | {letter.identity: "" for letter in letters}
    for letter in letters:
        if letter.state != "open":
            who = f" (by {letter.decided_by})" if letter.decided_by else ""
            refused[letter.identity] = _NOT_OPEN[letter.state] + who
    ready = [letter for letter in letters if not refused[letter.identity]]
    refused |= prepare(ready)
    ready = [letter for letter in ready if not refused[letter.identity]]
    attempts = _move_ledger(connection, ready, "retrying" if state == "replaying" else state, step)
    for letter in ready:
        if letter.identity not in attempts:
            refused[letter.identity] = "is not dead in the ledger; its command has gone on since"
    ready = [letter for letter in ready if letter.identity in attempts]
    done = tuple(letter.identity for letter in ready)
    if done:
        verdict = {"state": state, "by": by, "because": because}
        connection.execute(query(_PACKAGE, "dead_letters_decide"), _columns(done) | verdict)
    decision = Decision(done, tuple(Refusal(identity, why) for identity, why in refused.items() if why))
    return decision, ready, attempts


def _locked(connection: Connection, named: tuple[Identity, ...]) -> list[_Letter]:
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(query(_PACKAGE, "dead_letters_lock"), _columns(named)).fetchall()
    return [_Letter(identity=Identity(row.pop("consumer_group"), row.pop("command_id")), **row) for row in rows]


def _move_ledger(connection: Connection, letters: list[_Letter], state: str, step: int) -> dict[Identity, int]:
    if not letters:
        return {}
    arguments = _columns(letter.identity for letter in letters)
    arguments |= {"attempts": [letter.attempts for letter in letters], "state": state, "step": step}
    rows = connection.execute(query(_PACKAGE, "dead_letters_ledger"), arguments).fetchall()
    return {Identity(group, command_id): attempt for group, command_id, attempt in rows}


def _record(letter: _Letter) -> OutboxRow:
    """The outbox row of a replay: the known headers only, so that nothing of an earlier journey comes along.

    Raises: UndecodableError.
    """
    key = None if letter.record_key is None else plain_text(letter.record_key)
    if key is not None and key.encode() != letter.record_key:
        raise UndecodableError("Its key is not text.", reason="bad_key")
    envelope = Envelope.from_headers(headers_from_json(letter.headers))
    if envelope.id != letter.identity.command_id:
        raise UndecodableError("Its headers name another command.", reason="bad_header")
    context = dataclasses.replace(envelope.context, group=letter.identity.group, due_at=None)
    columns = dataclasses.replace(envelope, context=context).columns()
    return OutboxRow(
        id=columns.pop(headers.ID),
        aggregatetype="replay",
        aggregateid=key,
        payload=letter.payload,
        topic=letter.lane,
        **columns,
    )


def _columns(identities: Iterable[Identity]) -> dict[str, Any]:
    """Groups and ids as arrays, in the order in which all transactions take ledger rows."""
    ordered = sorted(identities, key=lambda identity: (identity.command_id, identity.group))
    groups: list[str] = [identity.group for identity in ordered]
    ids: list[UUID] = [identity.command_id for identity in ordered]
    return {"groups": groups, "ids": ids}
