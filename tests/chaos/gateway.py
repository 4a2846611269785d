"""The other system that external handlers call: a file to which each call adds a line, whatever the database does.

A line is written at once and whole, so that its place in the file is the order of the calls. As at a gateway with
idempotency keys, the first line of a key is the effect and others are repeats.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple


class Called(NamedTuple):
    """One call."""

    idempotency_key: str
    id: str
    key: str
    number: int
    attempt: int
    pid: int
    at: float


class Gateway:
    """The door for workers."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)

    def call(self, idempotency_key: str, identity: Any, key: str, number: int, attempt: int) -> None:
        """Do it; there is no going back."""
        called = Called(idempotency_key, str(identity), key, number, attempt, os.getpid(), time.time())
        os.write(self._file, (json.dumps(called) + "\n").encode())


def calls(path: str) -> list[Called]:
    """All calls, in their order."""
    file = Path(path)
    if not file.exists():
        return []
    with file.open("rb") as lines:
        return [Called(*json.loads(line)) for line in lines if line.endswith(b"\n")]
