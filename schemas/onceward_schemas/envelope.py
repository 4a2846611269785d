"""What travels beside a command's payload: identity, attempt, origin and trace, as columns and as headers.

Fields that every record needs to be routed are headers of their own; the rest share one JSON header, `context`, since a
header costs the relay more than the bytes in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID, SafeUUID

from onceward_schemas import headers
from onceward_schemas.errors import InvalidCommandError, UndecodableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The part of the envelope that one JSON header carries. Absent fields are not written."""

    dedupe_key: str | None = None
    """Drops exact duplicates at enqueue; see `outbox.publish`."""
    idempotency_key: str | None = None
    """Names the business action; stable over attempts and replays. Defaults to the command id."""
    request_id: str | None = None
    origin: str | None = None
    """The service or screen that asked for it."""
    actor: str | None = None
    """The person or account on whose behalf it runs."""
    operation: str | None = None
    business_key: str | None = None
    item: str | None = None
    """The identity of the run's item that this command works on."""
    causation_id: UUID | None = None
    """The command whose handler published this one."""
    sequence: int | None = None
    """An explicit order number within the key, where the publisher has one."""
    deadline: datetime | None = None
    """After this instant the command is discarded instead of run. Absolute; survives retries."""
    not_before: datetime | None = None
    """What the publisher asked for; the command's age is counted from here."""
    due_at: datetime | None = None
    """A retry record must not run before this instant."""
    group: str | None = None
    """Set on retries and replays: only this consumer group runs the record."""
    tracestate: str | None = None

    def __post_init__(self) -> None:
        for name in ("deadline", "not_before", "due_at"):
            value = getattr(self, name)
            if value is not None and value.tzinfo is None:
                raise InvalidCommandError(
                    f"{name} has no time zone.", field=name, remedy="Pass an aware datetime, for instance in UTC."
                )

    def to_json(self) -> str | None:
        """Compact JSON of the fields that are set, or None when none is."""
        values = {name: _plain(value) for name in _NAMES if (value := getattr(self, name)) is not None}
        return _as_json(values) if values else None

    @classmethod
    def from_json(cls, text: str | None) -> Context:
        """Read what `to_json` wrote; fields of a later version are ignored.

        Raises: UndecodableError with reason `bad_header`.
        """
        if not text:
            return _EMPTY
        try:
            raw = json.loads(text)
            return cls(
                **{name: _READ[name](value) for name, value in raw.items() if name in _READ and value is not None}
            )
        except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise _bad_header(headers.CONTEXT) from error


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40}")
    if "\0" in value:
        raise ValueError("NUL")  # PostgreSQL does not store it
    value.encode()  # nor half a surrogate pair
    return value


def _item(value: Any) -> str:
    """An item stands in an index, which holds no longer text."""
    if len(_text(value).encode()) > _MAX_ITEM_BYTES:
        raise ValueError("too long")
    return str(value)


def _instant(value: Any) -> datetime:
    instant = datetime.fromisoformat(value)
    if instant.tzinfo is None:
        raise ValueError("naive")
    return instant


_READ: dict[str, Any] = {f.name: _text for f in fields(Context)} | {
    "item": _item,
    "causation_id": UUID,
    "sequence": int,
    "deadline": _instant,
    "not_before": _instant,
    "due_at": _instant,
}
_MAX_ITEM_BYTES = 1024
_EMPTY = Context()
_NAMES = tuple(f.name for f in fields(Context))
_as_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """One command's identity and circumstances, as read from a record or as written to the outbox."""

    id: UUID
    type: str
    """The full name of the command's Avro record."""
    version: int = 1
    attempt: int = 1
    """The execution this record asks for, counted from 1."""
    tenant: str | None = None
    run_id: UUID | None = None
    traceparent: str | None = None
    context: Context = _EMPTY

    @property
    def idempotency_key(self) -> str:
        """What to hand to a gateway so that it applies the effect once: the same over attempts and replays."""
        return self.context.idempotency_key or str(self.id)

    def columns(self) -> dict[str, Any]:
        """The outbox columns that become headers, `id` included."""
        return {
            headers.ID: self.id,
            headers.TYPE: self.type,
            headers.VERSION: self.version,
            headers.ATTEMPT: self.attempt,
            headers.TENANT: self.tenant,
            headers.RUN_ID: self.run_id,
            headers.TRACEPARENT: self.traceparent,
            headers.CONTEXT: self.context.to_json(),
        }

    @classmethod
    def from_headers(cls, pairs: Iterable[tuple[str, bytes | str | None]]) -> Envelope:
        """Read a record's headers. Unknown names are ignored; of a repeated name the last counts.

        Raises: UndecodableError with reason `bad_header` or `missing_header`.
        """
        found = dict(pairs)
        get = found.get
        identity, name = get(headers.ID), get(headers.TYPE)
        if not identity or not name:
            raise _missing(headers.TYPE if identity else headers.ID)
        # This runs for every record: what is absent, or almost always the same, is not converted, and the frozen
        # fields are set through their slots, which takes a third of the time of the constructor.
        version, attempt, run_id, context = (
            get(headers.VERSION),
            get(headers.ATTEMPT),
            get(headers.RUN_ID),
            get(headers.CONTEXT),
        )
        made: Envelope = _new(cls)
        _set_id(made, _uuid_of(found, headers.ID))
        _set_type(made, _repeated(found, headers.TYPE))
        _set_version(made, 1 if version == b"1" else _read(found, headers.VERSION, _number, 1))
        _set_attempt(made, 1 if attempt == b"1" else _read(found, headers.ATTEMPT, _number, 1))
        _set_tenant(made, _repeated(found, headers.TENANT))
        _set_run_id(made, _uuid_of(found, headers.RUN_ID) if run_id else None)
        _set_traceparent(made, _text_of(found, headers.TRACEPARENT))
        _set_context(made, _EMPTY if context is None else Context.from_json(_text_of(found, headers.CONTEXT)))
        return made


_new = object.__new__
_set_id, _set_type, _set_version, _set_attempt, _set_tenant, _set_run_id, _set_traceparent, _set_context = (
    Envelope.__dict__[field.name].__set__ for field in fields(Envelope)
)
_set_int, _set_is_safe = UUID.__dict__["int"].__set__, UUID.__dict__["is_safe"].__set__
_UNKNOWN = SafeUUID.unknown

_texts: dict[bytes, str] = {}
"""Types and tenants as they were read before."""
_MOST_TEXTS = 4096
_LONGEST_TEXT = 200


def _missing(name: str) -> UndecodableError:
    return UndecodableError(
        f"The record has no header {name!r}.",
        reason="missing_header",
        remedy="Publish through onceward.outbox, or place the column in the connector's configuration.",
    )


def _uuid_of(found: dict[str, bytes | str | None], name: str) -> Any:
    """The UUID in a header, or None in an empty one. The usual form is read without UUID's own, slower constructor."""
    value = found[name]
    if isinstance(value, bytes) and len(digits := value.replace(b"-", b"")) == 32:
        try:
            number = int(digits, 16)
        except ValueError:
            return _read(found, name, UUID, None)
        made: UUID = _new(UUID)
        _set_int(made, number)
        _set_is_safe(made, _UNKNOWN)
        return made
    return _read(found, name, UUID, None)


def _repeated(found: dict[str, bytes | str | None], name: str) -> Any:
    """As `_text_of`, for what many records have in common."""
    value = found.get(name)
    if not isinstance(value, bytes):
        return _text_of(found, name)
    text = _texts.get(value)
    if text is None:
        text = _text_of(found, name)
        if text is not None and len(value) <= _LONGEST_TEXT:
            if len(_texts) >= _MOST_TEXTS:
                _texts.clear()
            _texts[value] = text
    return text


def _text_of(found: dict[str, bytes | str | None], name: str) -> str | None:
    value = found.get(name)
    if value is None:
        return None
    try:
        text = value if isinstance(value, str) else value.decode()
    except UnicodeDecodeError as error:
        raise _bad_header(name) from error
    if "\0" in text:  # PostgreSQL does not store it
        raise _bad_header(name)
    return text


def _read(found: dict[str, bytes | str | None], name: str, convert: Any, default: Any = None) -> Any:
    text = _text_of(found, name)
    if text is None or text == "":
        return default
    try:
        return convert(text)
    except ValueError as error:
        raise _bad_header(name) from error


def _number(text: str) -> int:
    """A count from 1, with room to be counted on within PostgreSQL's integer."""
    number = int(text)
    if not 1 <= number <= _MAX_NUMBER:
        raise ValueError(f"{text:.40}")
    return number


_MAX_NUMBER = 1_000_000_000


def _bad_header(name: str) -> UndecodableError:
    return UndecodableError(
        f"The header {name!r} cannot be read.", reason="bad_header", remedy="Correct what publishes the record."
    )
