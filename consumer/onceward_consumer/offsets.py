"""Which offset of a partition may be committed: the end of the longest prefix without unfinished records. Pure."""

from __future__ import annotations

from collections import deque


class Offsets:
    """One tenure of a partition. Records are added in order of offset and finish in any order.

    >>> offsets = Offsets()
    >>> for offset in (5, 6, 9):
    ...     offsets.add(offset)
    >>> offsets.finish(6)
    >>> offsets.committable() is None
    True
    >>> offsets.finish(5)
    >>> offsets.committable(), offsets.committable()
    (7, None)
    """

    __slots__ = ("_finished", "_open", "_position", "_reported")

    def __init__(self) -> None:
        self._open: deque[int] = deque()
        self._finished: set[int] = set()
        self._position: int | None = None
        self._reported: int | None = None

    def begin(self, position: int) -> None:
        """It is fetched from here on; that is worth a commit, too."""
        self._position = position

    def add(self, offset: int) -> None:
        """A record was fetched; its offset is greater than all before it."""
        self._open.append(offset)

    def finish(self, offset: int) -> None:
        """PostgreSQL holds what became of the record, or there is nothing to hold."""
        self._finished.add(offset)

    def committable(self, *, again: bool = False) -> int | None:
        """The offset to commit (that of the next record to fetch), or None where it has not moved since last asked.

        With `again` it is given even if it has not moved.
        """
        opened, finished = self._open, self._finished
        while opened and opened[0] in finished:
            last = opened.popleft()
            finished.discard(last)
            self._position = last + 1
        if self._position == self._reported and not again:
            return None
        self._reported = self._position
        return self._position

    def forget_report(self) -> None:
        """What was last reported did not reach the broker: report it again."""
        self._reported = None

    @property
    def ahead(self) -> int:
        """How many records are finished, but not to be committed, since an older one is not. For people: not exact."""
        return len(self._finished)

    @property
    def oldest(self) -> int | None:
        """The offset of the oldest record that still blocks the commit."""
        return next((offset for offset in self._open if offset not in self._finished), None)
