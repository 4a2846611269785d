"""Sends commands round again that were parked for a limit, as many as the limits can take in the next seconds."""

from __future__ import annotations

import time
from typing import Any, Final

import psycopg

from onceward_consumer.items import LIMITED, Engine
from onceward_consumer.limiter import Limiter
from onceward_consumer.parked import requeue
from onceward_consumer.release import delivery_of
from onceward_runtime.sql import query

_ROWS: Final = query("onceward_consumer", "parked_resolvable")
_REASONS: Final = query("onceward_consumer", "parked_limited")
_LOCK: Final = "select pg_try_advisory_xact_lock(hashtextextended('onceward.limited ' || %s, 0))"
_PAGE: Final = 500
_PAGES: Final = 10
_LONGEST_REST: Final = 4.0
_IDLE_REST: Final = 10.0


class Limited:
    """Where one worker's looking has come to. One worker at a time looks."""

    def __init__(self, engine: Engine, limiter: Limiter) -> None:
        self._engine = engine
        self._limiter = limiter
        self._after: dict[str, int] = {}
        self._rest = 0.0
        self._at = 0.0

    def hurry(self) -> None:
        """A limit has changed: look at once."""
        self._at = self._rest = 0.0

    def requeue(self, connection: psycopg.Connection[Any]) -> int:
        """Send round what there is room for, if it is time to look; one transaction. Returns how many."""
        if time.monotonic() < self._at:
            return 0
        total = 0
        with connection.transaction():
            [[reasons]] = connection.execute(_REASONS, (sorted(LIMITED), self._engine.group)).fetchall()
            if reasons and connection.execute(_LOCK, (self._engine.group,)).fetchall() == [(True,)]:
                rooms: dict[str, int] = {}
                total = sum(self._of(connection, reason, rooms) for reason in reasons)
        if not reasons:
            self._rest = 0.0 if self._limiter.active else _IDLE_REST
        else:
            self._rest = 0.0 if total else min(_LONGEST_REST, self._rest + 0.5)
        self._at = time.monotonic() + self._rest
        return total

    def _of(self, connection: psycopg.Connection[Any], reason: str, rooms: dict[str, int]) -> int:
        """Of one reason: from where the last look found something, or to the end and from the beginning again."""
        total = 0
        for _ in range(_PAGES):
            after = self._after.get(reason, 0)
            rows = connection.execute(_ROWS, (self._engine.group, reason, after, _PAGE)).fetchall()
            taken = [row for row in rows if self._fits(row, rooms)]
            if taken:
                total += requeue(connection, taken, self._engine)
            elif rows:
                self._after[reason] = rows[-1][0]
            if len(rows) < _PAGE:
                self._after[reason] = 0
            if len(rows) < _PAGE or 0 < len(taken) < len(rows):
                break
        return total

    def _fits(self, row: Any, rooms: dict[str, int]) -> bool:
        names = self._limiter.names(delivery_of(row[1:], self._engine))
        for name in names:
            if name not in rooms:
                rooms[name] = self._limiter.room(name)
        if any(rooms[name] <= 0 for name in names):
            return False
        for name in names:
            rooms[name] -= 1
        return True
