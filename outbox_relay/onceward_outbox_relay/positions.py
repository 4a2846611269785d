"""Which log position may be confirmed: the end of the longest prefix of transactions whose records Kafka all has. Pure.

Rows are counted by chunk, since one counter for some hundred rows is far cheaper than one a row. A chunk's position is the
end of the last transaction that was complete when the chunk was closed, so a chunk may end inside a transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar


class Chunk:
    """Some rows in a row, their number, and how many of them are settled: in Kafka, or parked."""

    __slots__ = ("committed_at", "lsn", "settled", "wanted")

    def __init__(self) -> None:
        self.wanted = 0
        self.settled = 0
        self.lsn = 0
        self.committed_at = 0.0


C = TypeVar("C", bound=Chunk)


class Positions(Generic[C]):
    """Positions in the log as 64-bit integers.

    >>> p = Positions(10)
    >>> p.begin(); p.open.wanted += 1; p.commit(20); chunk = p.close()
    >>> p.advance(), p.keepalive(30)
    (10, 10)
    >>> chunk.settled += 1
    >>> p.advance(), p.keepalive(30)
    (20, 30)
    """

    def __init__(self, start: int = 0, new_chunk: Callable[[], C] = Chunk) -> None:  # type: ignore[assignment]
        self._new_chunk = new_chunk
        self.rows = 0
        """How many rows were acknowledged."""
        self.acknowledged = start
        """Everything before it is settled."""
        self.read = start
        """The end of the last transaction read whole: where a new connection goes on."""
        self.open = self._new_chunk()
        self.in_transaction = False
        self._pending: deque[C] = deque()

    @property
    def idle(self) -> bool:
        """Whether everything read is settled, and no transaction is half read."""
        return not self._pending and not self.open.wanted and not self.in_transaction

    @property
    def waiting(self) -> bool:
        """Whether rows are on their way."""
        return bool(self._pending) or self.open.wanted > 0

    @property
    def oldest(self) -> C | None:
        """The first chunk that waits."""
        return self._pending[0] if self._pending else None

    @property
    def unsettled(self) -> int:
        """How many rows are on their way."""
        return sum(c.wanted - c.settled for c in self._pending) + self.open.wanted - self.open.settled

    def begin(self) -> None:
        self.in_transaction = True

    def commit(self, end_lsn: int) -> None:
        """A transaction was read to its end."""
        self.in_transaction = False
        self.read = end_lsn

    def close(self) -> C:
        """Close the open chunk, so that its rows count once they are settled."""
        chunk = self.open
        if chunk.wanted:
            chunk.lsn = self.read
            self._pending.append(chunk)
            self.open = self._new_chunk()
        return chunk

    def advance(self) -> int:
        """Take settled chunks off the front; returns the acknowledged position."""
        pending = self._pending
        while pending and pending[0].settled == pending[0].wanted:
            chunk = pending.popleft()
            self.rows += chunk.wanted
            self.acknowledged = max(self.acknowledged, chunk.lsn)
        if not pending and not self.open.wanted:
            self.acknowledged = max(self.acknowledged, self.read)
        return self.acknowledged

    def keepalive(self, wal_end: int) -> int:
        """The server has sent everything before `wal_end`; that counts only while nothing is on its way."""
        if self.idle:
            self.acknowledged = self.read = max(self.acknowledged, self.read, wal_end)
        return self.acknowledged

    def interrupted(self) -> int:
        """The connection is lost but the producer is not: returns where to go on reading.

        The rows read of an unfinished transaction will be read again; until they are settled nothing behind them counts.
        """
        self.close()
        self.in_transaction = False
        return self.read

    def rewound(self) -> int:
        """The producer is lost: everything not acknowledged will be read again. Returns where to go on."""
        self._pending.clear()
        self.open = self._new_chunk()
        self.in_transaction = False
        self.read = self.acknowledged
        return self.read
