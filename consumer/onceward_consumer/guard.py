"""Keeps an outage, or a deployment that breaks a handler, from pouring a whole lane into its dead-letter topic.

While nearly everything of a type dies, its would-be dead letters are parked at no cost instead (`guarded` sends them round
again). What a handler rejects itself (`Reject`) is its own decision and passes. Each worker judges by what it sees. Pure.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from onceward_consumer.durations import duration
from onceward_consumer.numbers import whole
from onceward_schemas.errors import AppError

GUARDED: Final = "dead_letters_guarded"
"""The reason with which a would-be dead letter is parked."""
_FORGIVEN_SECONDS: Final = 3600.0
_MOST_SUCCESSES: Final = 100
_MOST_JUDGED: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """How many dead letters of one type a worker lets through before it takes them for the sign of an outage."""

    consecutive: int = 100
    """So many with no success between them. Defaults to 100."""
    ratio: float = 0.5
    """This share of what ended within the window, if at least `least` did. Defaults to a half."""
    least: int = 200
    """Defaults to 200."""
    window: timedelta = timedelta(minutes=1)
    """Defaults to a minute."""
    successes: int = 3
    """So many in a row end it, twice as many after each time that it came back within an hour. Defaults to 3."""

    def __post_init__(self) -> None:
        for name in ("consecutive", "least", "successes"):
            whole(getattr(self, name), f"The ceiling's {name}")
        if isinstance(self.ratio, bool) or not isinstance(self.ratio, int | float) or not 0 < self.ratio <= 1:
            raise AppError(f"The ceiling's ratio is {self.ratio!r:.40}.", remedy="Give a number above 0, at most 1.")
        object.__setattr__(self, "window", duration(self.window, "The ceiling's window"))


class _Recent:
    """How many in the window, by seconds."""

    __slots__ = ("_counts", "_seconds", "total")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._counts: deque[tuple[float, int]] = deque()
        self.total = 0

    def add(self, count: int, now: float) -> None:
        self.total += count
        if self._counts and now - self._counts[-1][0] < 1.0:
            at, before = self._counts.pop()
            self._counts.append((at, before + count))
        else:
            self._counts.append((now, count))

    def forget(self, now: float) -> None:
        while self._counts and self._counts[0][0] < now - self._seconds:
            self.total -= self._counts.popleft()[1]


class _Type:
    """What a worker has seen of one type."""

    __slots__ = ("dead", "done", "good", "judged", "needed", "row", "tripped")

    def __init__(self, seconds: float) -> None:
        self.dead = _Recent(seconds)
        self.done = _Recent(seconds)
        self.row = 0
        """Dead letters since the last success."""
        self.judged: dict[UUID, None] = {}
        """The last that passed: one whose transaction is run again is counted once."""
        self.tripped = False
        self.good = self.needed = 0


class Guard:
    """Used by all threads of a worker; `now` is in seconds on a monotonic clock."""

    def __init__(
        self, ceiling: Ceiling | None, on_change: Callable[[str, bool], None] = lambda type_name, tripped: None
    ) -> None:
        """Without a ceiling every dead letter passes. `on_change` is told the type, and whether it is under guard now."""
        self._ceiling = ceiling
        self._on_change = on_change
        self._lock = threading.Lock()
        self._types: dict[str, _Type] = {}
        self._ended: dict[str, float] = {}
        """When a type's time under guard was last over."""

    def admits(self, type_name: str, command_id: UUID, now: float) -> bool:
        """Whether this command may become a dead letter.

        >>> guard = Guard(Ceiling(consecutive=2))
        >>> [guard.admits("shop.Pay", UUID(int=n), 0.0) for n in (1, 2, 3)]
        [True, True, False]
        >>> guard.succeeded("shop.Pay", 3, 1.0)
        True
        >>> guard.admits("shop.Pay", UUID(int=3), 2.0)
        True
        """
        if (ceiling := self._ceiling) is None:
            return True
        with self._lock:
            seen = self._seen(type_name, ceiling)
            if seen.tripped:
                seen.good = 0
                return False
            if command_id in seen.judged:
                return True
            seen.done.forget(now)
            seen.dead.forget(now)
            ended = seen.dead.total + seen.done.total
            if seen.row >= ceiling.consecutive or (ended >= ceiling.least and seen.dead.total >= ceiling.ratio * ended):
                self._trip(type_name, seen, ceiling, now)
                self._on_change(type_name, True)
                return False
            seen.row += 1
            seen.dead.add(1, now)
            seen.judged[command_id] = None
            if len(seen.judged) > _MOST_JUDGED:
                del seen.judged[next(iter(seen.judged))]
            return True

    def succeeded(self, type_name: str, count: int, now: float) -> bool:
        """So many commands of a type ended well. True if that ends its time under guard."""
        if (ceiling := self._ceiling) is None:
            return False
        with self._lock:
            seen = self._seen(type_name, ceiling)
            seen.row = 0
            if not seen.tripped:
                seen.done.forget(now)
                seen.done.add(count, now)
                return False
            seen.good += count
            if seen.good < seen.needed:
                return False
            needed = seen.needed
            seen = self._types[type_name] = _Type(ceiling.window.total_seconds())
            seen.needed, self._ended[type_name] = needed, now
            self._on_change(type_name, False)
            return True

    def tripped(self) -> list[str]:
        """The types whose dead letters are held back."""
        with self._lock:
            return sorted(name for name, seen in self._types.items() if seen.tripped)

    def _seen(self, type_name: str, ceiling: Ceiling) -> _Type:
        seen = self._types.get(type_name)
        if seen is None:
            seen = self._types[type_name] = _Type(ceiling.window.total_seconds())
        return seen

    def _trip(self, type_name: str, seen: _Type, ceiling: Ceiling, now: float) -> None:
        again = seen.needed and now - self._ended[type_name] < _FORGIVEN_SECONDS
        seen.tripped, seen.good = True, 0
        seen.needed = min(seen.needed * 2, _MOST_SUCCESSES) if again else ceiling.successes
