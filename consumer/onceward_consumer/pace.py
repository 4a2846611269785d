"""How large a group may be: as large as can be run in a tenth of a second, so that slow handlers run beside each other."""

from __future__ import annotations

from typing import Final

MOST: Final = 100
"""Commands in a transaction; more gains nothing measurable."""
_TARGET_SECONDS: Final = 0.1
BATCH_SECONDS: Final = 5.0
"""The same for a batch handler, which has a cost of its own for each call, and said how many commands it takes."""


class Pace:
    """Learns from the groups before.

    >>> pace = Pace()
    >>> pace.most(1_000)
    100
    >>> pace.note(100, 2.0)
    >>> pace.most(1_000) < 100
    True
    """

    def __init__(self, most: int = MOST, target_seconds: float = _TARGET_SECONDS) -> None:
        self._most = most
        self._target_seconds = target_seconds
        self._seconds = 0.0005

    def most(self, share: int) -> int:
        """The largest group when `share` commands wait for this runner."""
        return max(1, min(share, self._most, int(self._target_seconds / self._seconds)))

    def note(self, count: int, seconds: float) -> None:
        """A group of `count` took so long."""
        each = seconds / count
        self._seconds += (max(each, 1e-6) - self._seconds) * min(1.0, count / 50)
