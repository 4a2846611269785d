"""How a row of the outbox becomes a record: which column is what, as one agrees with Debezium's Outbox Event Router."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from onceward_outbox_relay import pgoutput
from onceward_schemas import headers
from onceward_schemas.errors import DatabaseError

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A table and its columns. Another team's Debezium table is served by naming its columns here."""

    schema: str = "onceward"
    table: str = "outbox"
    topic: str = "topic"
    """The column that routes. Defaults to `topic`."""
    topic_prefix: str = ""
    """Put before that column's value. Defaults to nothing."""
    key: str = "aggregateid"
    value: str = "payload"
    headers: tuple[tuple[str, str], ...] = tuple((name, name) for name in headers.ALL)
    """Pairs of column and header, in the order of the headers. Defaults to `id` and the placed columns."""
    seq: str | None = "seq"
    """The column that orders rows as they were inserted; sweeping, polling and parking need it. Defaults to `seq`."""
    xid: str | None = "xid"
    """The column with the inserting transaction; clean-up needs it. Defaults to `xid`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read, each once."""
        named = [self.topic, self.key, self.value, *(column for column, _ in self.headers)]
        return tuple(dict.fromkeys(named + ([self.seq] if self.seq else [])))


class Field(NamedTuple):
    position: int
    convert: pgoutput.ToText | None


class HeaderField(NamedTuple):
    name: str
    position: int
    convert: pgoutput.ToText | None


class Plan(NamedTuple):
    """Where the parts of a record are among the values of a row."""

    topic: Field
    key: Field
    value: Field
    headers: tuple[HeaderField, ...]
    seq: Field | None
    # The same once more, as the inner loop wants it.
    names: tuple[str, ...]
    pick: Callable[[list[bytes | None]], tuple[bytes | None, ...]]
    """The values of the headers."""
    converted: tuple[tuple[int, str, pgoutput.ToText], ...]
    """Which of them need a conversion."""


def plan(layout: Layout, columns: Sequence[pgoutput.Column]) -> Plan:
    """Find the layout's columns among those of the table as it is now.

    Raises: DatabaseError naming the column that is missing, or whose type cannot be sent.
    """
    found = {column.name: (index, column.type_oid) for index, column in enumerate(columns)}

    def field(name: str) -> Field:
        if name not in found:
            raise DatabaseError(
                f"The table {layout.schema}.{layout.table} has no column {name!r}, or it is not published.",
                remedy="Run `onceward db apply`, or correct the relay's column names.",
            )
        index, oid = found[name]
        if not pgoutput.supports(oid):
            raise DatabaseError(
                f"The column {name!r} of {layout.schema}.{layout.table} has a type (oid {oid}) that no record can carry.",
                remedy="Use text, a number, bool, uuid, json, bytea, or a date or time type.",
            )
        return Field(index, pgoutput.to_text(oid))

    fields = tuple(HeaderField(name, *field(column)) for column, name in layout.headers)
    return Plan(
        topic=field(layout.topic),
        key=field(layout.key),
        value=field(layout.value),
        headers=fields,
        seq=field(layout.seq) if layout.seq else None,
        names=tuple(h.name for h in fields),
        pick=_picker([h.position for h in fields]),
        converted=tuple((at, h.name, h.convert) for at, h in enumerate(fields) if h.convert is not None),
    )


def _picker(positions: list[int]) -> Callable[[list[bytes | None]], tuple[bytes | None, ...]]:
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda values: tuple(values[position] for position in positions)


def converted(part: Field | HeaderField, values: list[bytes | None]) -> bytes | None:
    """One part of a record as bytes. Raises: ValueError."""
    value = values[part.position]
    return value if value is None or part.convert is None else part.convert(value)


def number(found: Plan, values: list[bytes | None]) -> int | None:
    """The row's number, where the table has one."""
    value = None if found.seq is None else values[found.seq.position]
    if value is None:
        return None
    return int(value) if type(value) is pgoutput.Text else int.from_bytes(value, "big", signed=True)
