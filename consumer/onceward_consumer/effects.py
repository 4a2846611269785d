"""Effects that happen once for a business key, whichever command asks for them: a row in the effect's own transaction."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final
from uuid import UUID

import psycopg

from onceward_consumer.run_items import check_name
from onceward_runtime.sql import query

_ONCE: Final = query("onceward_consumer", "effect_once")


def first(connection: Any, group: str, key: str, command_id: UUID) -> bool | Awaitable[bool]:
    """Whether nobody has applied the effect of `key` yet; then it is this transaction's. Awaitable on an async connection.

    Raises: InvalidCommandError for a key that cannot be stored.
    """
    values = group, check_name("key", key), command_id
    if isinstance(connection, psycopg.AsyncConnection):
        return _first(connection, values)
    return bool(connection.execute(_ONCE, values).rowcount)


async def _first(connection: psycopg.AsyncConnection[Any], values: tuple[str, str, UUID]) -> bool:
    return bool((await connection.execute(_ONCE, values)).rowcount)
