"""One record as the poller hands it on: where it came from, its bytes, and what its headers say of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias
from uuid import UUID, uuid5

from onceward_consumer.handlers import Handler
from onceward_schemas import headers
from onceward_schemas.envelope import Envelope
from onceward_schemas.errors import UndecodableError

Kind: TypeAlias = str
"""Which executor runs it: `sync`, `async`, or `external` or `batch` and a type."""
Headers: TypeAlias = list[tuple[str, bytes | None]]
Address: TypeAlias = tuple[str, str]
"""(lane, key): what order holds within."""

_NAMESPACE: Final = UUID("5b0f2f0e-6a53-4b0a-9a25-0d0a4d3a7c11")


class Assignment(Protocol):
    """One tenure of a partition: from its assignment to its revocation."""

    active: bool

    def finish(self, offset: int) -> None:
        """PostgreSQL holds what became of the record."""


class Delivery:
    """A record of one tenure. `refusal` says why its headers cannot be read; then only `id` can be relied on."""

    __slots__ = (
        "address",
        "assignment",
        "early",
        "envelope",
        "handler",
        "headers",
        "id",
        "key",
        "key_text",
        "kind",
        "lane",
        "offset",
        "overflow",
        "partition",
        "payload",
        "refusal",
        "size",
        "stalls",
        "timestamp_ms",
        "topic",
    )

    def __init__(
        self,
        *,
        topic: str,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        payload: bytes | None,
        headers: Headers,
        lane: str,
        assignment: Assignment | None,
        handlers: Mapping[str, Handler],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp_ms = timestamp_ms
        self.key = key
        self.payload = payload
        self.headers = headers
        self.lane = lane
        self.assignment = assignment
        self.size = (len(payload) if payload else 0) + 400
        self.stalls = 0
        """How often its run gave way to somebody else's lock."""
        self.early = False
        """It came out of a tier whose delay is shorter than its wait."""
        self.overflow: str | None = None
        """Why it is to be parked and not run, where what waits behind a limit has become too much (throttles)."""
        self.key_text = None if key is None else key_text(key)
        self.address: Address | None = None if self.key_text is None else (lane, self.key_text)
        self.handler: Handler | None = None
        self.kind: Kind = "sync"
        self.refusal: UndecodableError | None = None
        self.envelope: Envelope | None = None
        try:
            self.envelope = Envelope.from_headers(headers)
        except UndecodableError as error:
            self.refusal = error
            self.id = _usable_id(headers) or derived_id(topic, partition, offset, timestamp_ms, key, payload)
            return
        self.id = self.envelope.id
        handler = self.handler = handlers.get(self.envelope.type)
        if handler is not None:
            self.kind = handler.kind

    def __repr__(self) -> str:
        return f"Delivery({self.topic}[{self.partition}]@{self.offset})"


def kind_of(handler: Handler) -> Kind:
    """The executor of a handler's commands."""
    return handler.kind


def columns_of(addresses: Sequence[Address], group: str) -> dict[str, Any]:
    """Addresses as the parameters of a statement about their keys."""
    return {"group": group, "lanes": [lane for lane, _ in addresses], "keys": [key for _, key in addresses]}


def derived_id(
    topic: str, partition: int, offset: int, timestamp_ms: int, key: bytes | None, payload: bytes | None
) -> UUID:
    """The command id of a record that has none: the same for every delivery of the record."""
    content = hashlib.sha256(repr((key, payload)).encode()).hexdigest()
    return uuid5(_NAMESPACE, f"{topic}/{partition}/{offset}/{timestamp_ms}/{content}")


def _usable_id(pairs: Iterable[tuple[str, bytes | None]]) -> UUID | None:
    found: UUID | None = None
    for name, value in pairs:
        if name == headers.ID:
            try:
                found = UUID((value or b"").decode("ascii"))
            except ValueError:
                found = None
    return found


_LONGEST_KEY: Final = 1024
"""In bytes. PostgreSQL's indexes hold no text beyond 2.7 kB, and the outbox lets no longer key pass."""


def key_text(key: bytes) -> str:
    """The key as it stands in tables: its text, or a digest of one that is long."""
    text = plain_text(key)
    if len(key) <= _LONGEST_KEY // 3 or len(text.encode()) <= _LONGEST_KEY:
        return text
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def plain_text(key: bytes) -> str:
    """The key as text that PostgreSQL can hold; one that is not UTF-8, or holds a NUL, is written in hexadecimal."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return f"\\x{key.hex()}"
    return f"\\x{key.hex()}" if "\0" in text else text


def headers_to_json(pairs: Headers) -> str:
    """A record's headers as a JSON array of [name, text or null]; bytes that are not text become {"hex": ...}."""
    return json.dumps([[name, _plain(value)] for name, value in pairs], ensure_ascii=True, separators=(",", ":"))


def headers_from_json(pairs: Any) -> Headers:
    """Read what `headers_to_json` wrote, once the driver has parsed the JSON."""
    return [(name, _raw(value)) for name, value in pairs]


def _plain(value: bytes | str | None) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    return value


def _raw(value: Any) -> bytes | None:
    if value is None:
        return None
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else str(value).encode()
