"""The text that stands for a command's aggregate: the record's key, and so the partition and the order."""

from __future__ import annotations

from onceward_schemas.command import Command
from onceward_schemas.errors import InvalidCommandError

MAX_LENGTH = 255
"""Characters in a key. Keys are names, they stand in indexes and in lists."""


def key_of(command: Command) -> str | None:
    """The command's key as text, or None where its order does not matter.

    Raises: InvalidCommandError for an empty key or one longer than MAX_LENGTH.
    """
    field = command.SCHEMA.key
    if field is None:
        return None
    key = str(getattr(command, field))
    if not 0 < len(key) <= MAX_LENGTH or "\0" in key:
        raise InvalidCommandError(
            f"{command.SCHEMA.name}.{field} has {len(key):,} characters and cannot be a key.",
            field=field,
            remedy=f"Pass 1 to {MAX_LENGTH} characters that name the aggregate, none of them zero.",
        )
    return key
