"""From a command to a row of onceward.outbox: pure, so that publishing, retries, dead letters and ticks share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol, Unpack
from uuid import UUID
from weakref import WeakKeyDictionary

from onceward_producer.options import DEFAULT_WINDOW, PublishOptions, RowOptions, check_text, checked
from onceward_runtime.sql import query
from onceward_runtime.tracing import inject
from onceward_schemas.command import Command
from onceward_schemas.envelope import Context
from onceward_schemas.errors import InvalidCommandError
from onceward_schemas.ids import new_id
from onceward_schemas.topics import checked as checked_topic


class Encoder(Protocol):
    """Turns a command into the bytes of its record; `onceward_schemas.codec.Codec` is one."""

    def encode(self, command: Command, /) -> bytes:
        """Raises: InvalidCommandError, SchemaMissingError, RegistryUnavailableError."""


class OutboxRow(NamedTuple):
    """One row of onceward.outbox, in the order of its columns; `seq`, `xid` and `created_at` are the database's."""

    id: UUID
    aggregatetype: str
    aggregateid: str | None
    type: str
    payload: bytes | None
    topic: str
    version: int = 1
    attempt: int = 1
    tenant: str | None = None
    run_id: UUID | None = None
    traceparent: str | None = None
    context: str | None = None


class Draft(NamedTuple):
    """A row and how it is to be put in."""

    row: OutboxRow
    dedupe_key: str | None
    window_seconds: float
    not_before: datetime | None

    @property
    def plain(self) -> bool:
        """Whether it is a mere insert into the outbox."""
        return self.dedupe_key is None and self.not_before is None


def _publish(drafts: str) -> str:
    return query("onceward_producer", "publish_drafts").replace("{drafts}", query("onceward_producer", drafts))


INSERT_ONE: Final = query("onceward_producer", "insert_one")
"""One row; its parameters are the row itself."""
INSERT_MANY: Final = query("onceward_producer", "insert_many")
"""Any number of rows in one statement; its parameters are `arrays(rows)`."""
PUBLISH_DRAFTS: Final = _publish("drafts_many")
"""Any number of drafts, dedupe keys and `not_before` included, in one statement; its parameters are
`draft_arrays(drafts)`. Returns (id that counts, whether it was there before) for each draft, in order."""
PUBLISH_DRAFT: Final = _publish("draft_one")
"""The same for one draft; its parameters are `draft_values(draft)`, which drivers send at a third of the cost."""


def row(command: Command, codec: Encoder, **options: Unpack[RowOptions]) -> OutboxRow:
    """Return the command's row, with a new id, the type's lane and key, and the ambient trace context.

    Raises: InvalidCommandError naming the field, and what the codec raises.
    """
    refused = sorted(options.keys() & _DELIVERY)
    if refused:
        raise TypeError(f"{refused[0]!r} says how a row is put in: use draft() with PUBLISH_DRAFTS.")
    return draft(command, codec, **options).row


def draft(command: Command, codec: Encoder, **options: Unpack[PublishOptions]) -> Draft:
    """Return the command's row and how it is to be put in; see `row`."""
    plan = _plan(command)
    given: Mapping[str, Any] = checked(options) if options else {}
    traceparent, tracestate = inject()
    key = plan.key_text(command) if plan.key_text else None
    window = given.get("dedupe_window", DEFAULT_WINDOW)
    return Draft(
        OutboxRow(
            new_id(),
            plan.aggregate,
            key,
            plan.type,
            codec.encode(command),
            plan.topic,
            plan.version,
            1,
            given.get("tenant"),
            given.get("run_id"),
            traceparent,
            _context(given, tracestate) if given or tracestate else None,
        ),
        given.get("dedupe_key"),
        window.total_seconds(),
        given.get("not_before"),
    )


def arrays(rows: Iterable[OutboxRow]) -> list[list[Any]]:
    """Return the parameters of INSERT_MANY: one list for each column."""
    return [list(column) for column in zip(*rows, strict=True)] or [[] for _ in OutboxRow._fields]


def draft_values(made: Draft) -> tuple[Any, ...]:
    """Return the parameters of PUBLISH_DRAFT."""
    return (*made.row, *made[1:])


def draft_arrays(drafts: Iterable[Draft]) -> list[list[Any]]:
    """Return the parameters of PUBLISH_DRAFTS."""
    columns = [list(column) for column in zip(*drafts, strict=True)] or [[], [], [], []]
    return arrays(columns[0]) + columns[1:]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is the same for every command of a class."""

    type: str
    version: int
    topic: str
    aggregate: str
    key_text: Callable[[Command], str | None] | None


_plans: WeakKeyDictionary[type, _Plan] = WeakKeyDictionary()
_DELIVERY = PublishOptions.__optional_keys__ - RowOptions.__optional_keys__
_IN_CONTEXT = RowOptions.__optional_keys__ - {"tenant", "run_id"} | {"dedupe_key", "not_before"}
_RENAMED = {"causation": "causation_id"}


def _plan(command: Command) -> _Plan:
    found = _plans.get(type(command))
    if found is None:
        if not isinstance(command, Command) or not hasattr(command, "SCHEMA"):
            what = f"The class {command.__name__}" if isinstance(command, type) else f"A {type(command).__name__}"
            raise InvalidCommandError(
                f"{what} is not a command.",
                remedy="Pass an instance of a class that `onceward schemas generate` wrote.",
            )
        schema = command.SCHEMA
        found = _Plan(
            type=schema.name,
            version=schema.version,
            topic=checked_topic(schema.lane),
            aggregate=schema.aggregate,
            key_text=_key_text(schema.key) if schema.key else None,
        )
        _plans[type(command)] = found
    return found


def _key_text(field: str) -> Callable[[Command], str | None]:
    """A null key is allowed where the schema allows the field to be null: such a command has no order."""
    value_of = attrgetter(field)

    def text(command: Command) -> str | None:
        value = value_of(command)
        if isinstance(value, Enum):
            value = value.value
        if value is None:
            return None
        if isinstance(value, str):
            check_text(field, value)
            return value
        if isinstance(value, UUID) or (isinstance(value, int) and not isinstance(value, bool)):
            return str(value)
        raise InvalidCommandError(
            f"{field} is the key and of type {type(value).__name__}.",
            field=field,
            remedy="Make the key a string, a whole number or a UUID.",
        )

    return text


def _context(given: Mapping[str, Any], tracestate: str | None) -> str | None:
    values = {_RENAMED.get(name, name): value for name, value in given.items() if name in _IN_CONTEXT}
    return Context(tracestate=tracestate, **values).to_json()
