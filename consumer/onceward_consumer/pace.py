"""How large a group may be: as large as can be run in a tenth of a second, so that slow handlers run beside each other."""

from __future__ import annotations

MOST = 100
"""Commands in a transaction; more gains nothing measurable."""
_TARGET_SECONDS = 0.1


class Pace:
    """Learns from the groups before.

    >>> pace = Pace()
    >>> pace.most(1_000)
    100
    >>> pace.note(100, 2.0)
    >>> pace.most(1_000) < 100
    True
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._seconds = 0.0005

    def most(self, share: int) -> int:
        """The largest group when `share` commands wait for this runner."""
        return max(1, min(share, self._most, int(_TARGET_SECONDS / self._seconds)))

    def note(self, count: int, seconds: float) -> None:
        """A group of `count` took so long."""
        each = seconds / count
        self._seconds += (max(each, 1e-6) - self._seconds) * min(1.0, count / 50)
