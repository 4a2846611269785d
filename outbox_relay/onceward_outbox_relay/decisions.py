"""What an operator sees of the parked rows, and decides: to replay, which the relay carries out in order, or to discard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import dict_row

from onceward_runtime.sql import query


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which parked rows are meant; what is None does not narrow."""

    seqs: tuple[int, ...] | None = None
    topic: str | None = None
    key: str | None = None
    reason: str | None = None
    state: str | None = "parked"

    def parameters(self) -> dict[str, Any]:
        """For the queries of this module."""
        return {
            "seqs": None if self.seqs is None else list(self.seqs),
            "topic": self.topic,
            "key": None if self.key is None else self.key.encode(),
            "reason": self.reason,
            "state": self.state,
        }


def parked_rows(connection: psycopg.Connection[Any], selection: Selection, limit: int) -> list[dict[str, Any]]:
    """The rows in the order in which they were published. Values are not read, only their size."""
    with connection.cursor(row_factory=dict_row) as cursor:
        parameters = selection.parameters() | {"limit": limit}
        found: list[dict[str, Any]] = cursor.execute(
            query("onceward_outbox_relay", "parked_rows"), parameters
        ).fetchall()
    return found


def replay(connection: psycopg.Connection[Any], selection: Selection, *, actor: str, because: str | None) -> list[int]:
    """Ask the relay to try these rows again; it does so within a second, in order, and their followers go on after them.

    Returns their numbers. A row that is refused again is parked again.
    """
    return _decide(connection, "replaying", selection, actor, because)


def discard(connection: psycopg.Connection[Any], selection: Selection, *, actor: str, because: str | None) -> list[int]:
    """Give these rows up; their followers go on by themselves. The rows stay in the table for thirty days."""
    return _decide(connection, "discarded", selection, actor, because)


def _decide(
    connection: psycopg.Connection[Any], state: str, selection: Selection, actor: str, because: str | None
) -> list[int]:
    parameters = selection.parameters() | {"new_state": state, "actor": actor, "because": because}
    with connection.transaction():
        return [seq for (seq,) in connection.execute(query("onceward_outbox_relay", "decide"), parameters)]
