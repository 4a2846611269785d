"""The connection that a verb works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from onceward_runtime import postgres, settings


@contextmanager
def connected(verb: str) -> Iterator[psycopg.Connection[Any]]:
    """Connect in the name of the verb; instants are read in UTC."""
    with postgres.connect(settings.load(), application_name=verb, autocommit=True) as connection:
        connection.execute("set timezone = 'UTC'")
        yield connection
