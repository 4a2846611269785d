"""Sends would-be dead letters round again that the guard held back: one of each type first, more while they end well."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

import psycopg

from onceward_consumer.guard import GUARDED
from onceward_consumer.items import Engine
from onceward_consumer.parked import requeue
from onceward_consumer.release import delivery_of
from onceward_runtime.sql import query

_ROWS: Final = query("onceward_consumer", "parked_resolvable")
_LOOK: Final = query("onceward_consumer", "guarded_look")
_LOCK: Final = "select pg_try_advisory_lock(hashtextextended('onceward.guarded ' || %s, 0))"
_ANY: Final = "select exists (select from onceward.parked where consumer_group = %s and reason = %s)"
_PAGE: Final = 500
_PAGES: Final = 10
_IDLE_SECONDS: Final = 10.0
_REST_SECONDS: Final = 15.0
"""Between probes that fail."""
_PATIENCE_SECONDS: Final = 60.0
"""Probes that have not ended by then, since they are retried, do not hold up others any more."""


@dataclass(slots=True)
class _Ramp:
    """How many of a type may go next, and which went last."""

    size: int = 1
    sent: list[UUID] = field(default_factory=list)
    at: float = 0.0

    def judge(self, back: int, under_way: int, now: float) -> bool:
        """Whether others may go now.

        >>> ramp = _Ramp(4, [UUID(int=1)], at=100.0)
        >>> ramp.judge(0, 1, 110.0), ramp.judge(0, 0, 120.0), ramp.size
        (False, True, 8)
        >>> ramp.judge(1, 1, 114.0), ramp.judge(1, 1, 115.0), ramp.size
        (False, True, 1)
        """
        if back:
            self.size = 1
            return now - self.at >= _REST_SECONDS
        if under_way and now - self.at < _PATIENCE_SECONDS:
            return False
        if self.sent:
            self.size = min(self.size * 2, _PAGE)
        return True


class Guarded:
    """Where one worker's looking has come to. One worker of a group looks, as long as its connection lives."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ramps: defaultdict[str, _Ramp] = defaultdict(_Ramp)
        self._locked: psycopg.Connection[Any] | None = None
        self._after = 0
        self._at = 0.0

    def requeue(self, connection: psycopg.Connection[Any], now: float) -> int:
        """Send round what may be tried, if it is time to look, on an autocommit connection. Returns how many."""
        if now < self._at:
            return 0
        values = self._engine.group, GUARDED
        [[some]] = connection.execute(_ANY, values).fetchall()
        if not some or not self._first(connection):
            self._at = now + _IDLE_SECONDS
            self._ramps.clear()
            return 0
        rooms = {name: ramp.size if self._may(connection, ramp, now) else 0 for name, ramp in self._ramps.items()}
        total = 0
        for _ in range(_PAGES):
            with connection.transaction():
                rows = connection.execute(_ROWS, (*values, self._after, _PAGE)).fetchall()
                taken = [row for row in rows if self._take(row, rooms, now)]
                total += requeue(connection, taken, self._engine)
            self._after = rows[-1][0] if len(rows) == _PAGE else 0
            if not self._after:
                break
        return total

    def _first(self, connection: psycopg.Connection[Any]) -> bool:
        if self._locked is not connection:
            [[locked]] = connection.execute(_LOCK, (self._engine.group,)).fetchall()
            self._locked = connection if locked else None
        return self._locked is connection

    def _may(self, connection: psycopg.Connection[Any], ramp: _Ramp, now: float) -> bool:
        values = {"group": self._engine.group, "reason": GUARDED, "ids": ramp.sent}
        [(back, under_way)] = connection.execute(_LOOK, values).fetchall()
        if not ramp.judge(back, under_way, now):
            return False
        ramp.sent = []
        return True

    def _take(self, row: Any, rooms: dict[str, int], now: float) -> bool:
        delivery = delivery_of(row[1:], self._engine)
        name = delivery.envelope.type if delivery.envelope is not None else ""
        ramp = self._ramps[name]
        room = rooms.setdefault(name, ramp.size)
        if room <= 0:
            return False
        rooms[name] = room - 1
        ramp.sent.append(delivery.id)
        ramp.at = now
        return True
