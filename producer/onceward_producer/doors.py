"""How a piece of work is carried out on the caller's transaction: what every driver's door has in common."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from functools import cache
from typing import Final, Protocol
from weakref import WeakSet

from onceward_producer.work import Rows, Step, T, Work
from onceward_schemas.errors import DatabaseError, OncewardError, TransactionError

CLOSED: Final = "The connection is closed."
FAILED: Final = "The transaction has failed already, so PostgreSQL would refuse the command."
ROLL_BACK: Final = "Roll it back, then publish in a new one."


class Door(Protocol):
    """One driver's way to carry out steps and wait for them."""

    def check(self) -> None:
        """Raises: TransactionError where a row would not become part of an open transaction."""

    def do(self, step: Step) -> Rows:
        """Carry out one step."""

    def translated(self, error: Exception) -> Exception:
        """The error to raise in its place, or the same."""


class AsyncDoor(Protocol):
    """The same for drivers of asyncio."""

    def check(self) -> None: ...

    async def do(self, step: Step) -> Rows: ...

    def translated(self, error: Exception) -> Exception: ...


def run(door: Door, work: Work[T]) -> T:
    """Carry out the work."""
    door.check()
    try:
        step = next(work)
        while True:
            try:
                rows = door.do(step)
            except Exception as error:
                step = _throw(work, door.translated(error), error)
            else:
                step = work.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def run_async(door: AsyncDoor, work: Work[T]) -> T:
    """Carry out the work."""
    door.check()
    try:
        step = next(work)
        while True:
            try:
                rows = await door.do(step)
            except Exception as error:
                step = _throw(work, door.translated(error), error)
            else:
                step = work.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _throw(work: Work[T], error: Exception, cause: Exception) -> Step:
    if error is not cause:
        error.__cause__ = cause
    return work.throw(error)


def by_sqlstate(sqlstate: str | None, said: str) -> OncewardError | None:
    """What a server error says about the database or the transaction; None for errors that callers know by themselves."""
    if sqlstate == "25P02":
        return TransactionError(FAILED, remedy=ROLL_BACK)
    remedy = _REMEDIES.get(sqlstate or "")
    return (remedy and DatabaseError(f"PostgreSQL refused the command: {said.rstrip('.')}.", remedy=remedy)) or None


_MIGRATE = "Run `onceward db apply` on the database that the transaction belongs to."
_REMEDIES = {
    "3F000": _MIGRATE,
    "42P01": _MIGRATE,
    "42703": _MIGRATE,
    "42501": "Grant the role what docs/database.md lists.",
    "25006": "Publish in a read-write transaction on the primary server.",
}


@cache
def numbered(sql: str) -> str:
    """The statement with PostgreSQL's own placeholders.

    >>> numbered("select %s, %s")
    'select $1, $2'
    """
    count = iter(range(1, 1000))
    return re.sub("%s", lambda _: f"${next(count)}", sql)


_used: WeakSet[object] = WeakSet()
_inherited: WeakSet[object] = WeakSet()


def refuse_inherited(connection: object) -> None:
    """Refuse a driver's connection that a parent process has published on: two processes would share one socket.

    Raises: TransactionError.
    """
    if connection in _inherited:
        raise TransactionError(
            "The connection belongs to the parent process.",
            remedy="Open a new one after the fork; for SQLAlchemy call engine.dispose(close=False) in the child.",
        )
    with suppress(TypeError):  # a driver whose connections cannot be referred to weakly
        _used.add(connection)


def _after_fork() -> None:
    global _used, _inherited
    _inherited = WeakSet([*_inherited, *_used])
    _used = WeakSet()


os.register_at_fork(after_in_child=_after_fork)
