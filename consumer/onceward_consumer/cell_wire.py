"""What a worker and its cells say to each other, and the slate on which a cell writes what it calls.

The slate is shared memory: it costs a call no system call, and outlives the cell.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import struct
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from onceward_consumer.deliveries import Delivery, Headers, Kind
from onceward_consumer.items import Item
from onceward_consumer.outcomes import BEYOND_LEDGER, Outcome
from onceward_runtime.settings import Settings

TAKEN: Final = "taken"
"""A cell has a request in hand: if it dies now, that may be its doing."""
READY: Final = "ready"
"""A cell has imported the application."""

Reading = tuple[datetime, float, float]
"""Of the database's clock; the monotonic clock is the same in all processes of a machine."""


class Setup(NamedTuple):
    """What a cell has to know once. Sent over the pipe, since there are passwords in it."""

    target: str
    path: list[str]
    settings: Settings
    connection: dict[str, Any]
    group: str
    worker: str
    reach: timedelta
    lock_timeout: timedelta
    transaction_timeout: timedelta


class Knowledge(NamedTuple):
    """What the worker knows of the commands at hand that their rows do not say."""

    clock: Reading
    deaths: Mapping[UUID, tuple[str, ...]]
    overran: Mapping[UUID, tuple[int, str, str]]
    """Commands whose cell was ended for their length, with the attempt, the reason and what is said of it."""


class Sent(NamedTuple):
    """A delivery."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    payload: bytes | None
    headers: Headers
    lane: str
    early: bool
    overflow: str | None
    stalls: int


class GroupRequest(NamedTuple):
    """Run these, all sync or all async, as a group."""

    deliveries: Sequence[Sent]
    known: Knowledge


class ReleaseRequest(NamedTuple):
    """Do a round of releasing parked followers."""

    kind: Kind
    single: bool
    known: Knowledge


class CallRequest(NamedTuple):
    """Call the handler of a leased external command."""

    delivery: Sent
    attempt: int
    attempts_before: int
    first_failed_at: datetime | None
    known: Knowledge


class ItemReply(NamedTuple):
    """What became of one command."""

    outcome: Outcome | None
    attempt: int
    attempts_before: int
    crashed: bool
    heads: bool
    known: bool
    started: float
    seconds: float
    decoded: bool
    stalls: int


class GroupReply(NamedTuple):
    """In the order of the request."""

    items: Sequence[ItemReply]


class ReleaseReply(NamedTuple):
    """As release.Released; the payloads are left out."""

    keys: int
    items: Sequence[tuple[Sent, ItemReply]]
    others: frozenset[Kind]


class CallReply(NamedTuple):
    """An outcome with what it leaves."""

    item: ItemReply
    left: Mapping[str, Any]


class Lost(NamedTuple):
    """The database cannot be used; nothing has happened."""

    error: str
    timed_out: bool


class Broken(NamedTuple):
    """The application cannot be imported, or the engine itself failed."""

    error: str


def sent(delivery: Delivery, *, payload: bool = True) -> Sent:
    """As it travels."""
    return Sent(
        delivery.topic,
        delivery.partition,
        delivery.offset,
        delivery.timestamp_ms,
        delivery.key,
        delivery.payload if payload else None,
        delivery.headers,
        delivery.lane,
        delivery.early,
        delivery.overflow,
        delivery.stalls,
    )


def received(found: Sent, handlers: Mapping[str, Any]) -> Delivery:
    """As it was."""
    delivery = Delivery(
        topic=found.topic,
        partition=found.partition,
        offset=found.offset,
        timestamp_ms=found.timestamp_ms,
        key=found.key,
        payload=found.payload,
        headers=found.headers,
        lane=found.lane,
        assignment=None,
        handlers=handlers,
    )
    delivery.early, delivery.overflow, delivery.stalls = found.early, found.overflow, found.stalls
    return delivery


def reply_of(item: Item) -> ItemReply:
    """What the worker has to know of an item that has its outcome."""
    return ItemReply(
        item.outcome,
        item.attempt,
        item.attempts_before,
        item.crashed,
        item.heads,
        item.known,
        item.started,
        item.seconds,
        item.command is not None,
        item.delivery.stalls,
    )


_DECODED: Final[Any] = object()
"""Stands for a command that only the cell has seen."""


def apply(reply: ItemReply, item: Item) -> None:
    """Give the worker's item what the cell's has."""
    item.outcome = BEYOND_LEDGER if reply.outcome == BEYOND_LEDGER else reply.outcome
    item.attempt, item.attempts_before = reply.attempt, reply.attempts_before
    item.crashed, item.heads, item.known = reply.crashed, reply.heads, reply.known
    item.started, item.seconds = reply.started, reply.seconds
    item.command = _DECODED if reply.decoded else None
    item.delivery.stalls = reply.stalls


def plain(value: Any) -> Any:
    """What a handler has left, without classes of the application's that only look like text, numbers or instants."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    if isinstance(value, str):
        return str.__getitem__(value, slice(None))
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, tuple):
        made = [plain(each) for each in value]
        return type(value)(*made) if hasattr(value, "_fields") else tuple(made)
    return [plain(each) for each in value] if isinstance(value, list) else value


def pack(message: Any) -> bytes:
    """A message as bytes."""
    return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)


class _Reader(pickle.Unpickler):
    """Handlers run in a cell, so what comes out of it may name nothing but values of ours."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _PLAIN:
            return super().find_class(module, name)
        # A name with a dot, or one that is defined elsewhere, is what a module of ours imports: os.system, say.
        if module.partition(".")[0] in _OURS and "." not in name:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"A cell sent a {module}.{name}.")


_OURS: Final = frozenset({"onceward_consumer", "onceward_producer", "onceward_schemas"})
_PLAIN: Final = frozenset(
    {
        ("uuid", "UUID"),
        ("uuid", "SafeUUID"),
        ("datetime", "datetime"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("builtins", "frozenset"),
    }
)


def unpack(data: bytes) -> Any:
    """What a cell said.

    Raises: pickle.UnpicklingError.
    """
    return _Reader(io.BytesIO(data)).load()


class Calling(NamedTuple):
    """The call that a cell is in."""

    command_id: UUID
    attempt: int
    handler: int
    """Its number among the application's types, sorted."""
    started: float
    """By time.perf_counter(), which all processes of a machine share."""


_CALL: Final = struct.Struct("=16sIId")


class Slate:
    """Written by a cell, read by its worker."""

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = _memory()
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)

    def write(self, calling: Calling) -> None:
        """A call begins."""
        self._memory[0] = 0
        _CALL.pack_into(self._memory, 8, calling.command_id.bytes, calling.attempt, calling.handler, calling.started)
        self._memory[0] = 1

    def wipe(self) -> None:
        """It is over."""
        self._memory[0] = 0

    def read(self) -> Calling | None:
        """The call that is under way; None while there is none, or it is being written."""
        if not self._memory[0]:
            return None
        identity, attempt, handler, started = _CALL.unpack_from(self._memory, 8)
        return Calling(UUID(bytes=identity), attempt, handler, started) if self._memory[0] else None

    def close(self) -> None:
        """Let go of the memory."""
        self._memory.close()
        os.close(self.descriptor)


def _memory() -> int:
    """A page of memory without a name, as a file."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("onceward-cell")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor
