"""The base of generated command classes, and what the schema file says about each type beside its fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSchema:
    """A command type as its .avsc file declares it. Source of every field: the record's `onceward` property."""

    name: str
    """Full name of the Avro record; the `type` header and the registry subject."""
    version: int
    lane: str
    """The topic that the type is published to."""
    key: str | None
    """The field whose value is the record's key; None where order does not matter."""
    aggregate: str
    """What the key identifies, for instance `employee`."""
    avro: dict[str, Any]
    """The schema itself, as parsed JSON."""
    owner: str | None = None


class Command:
    """Base of every generated command: a frozen, keyword-only dataclass with one attribute per Avro field."""

    __slots__ = ()
    SCHEMA: ClassVar[CommandSchema]
