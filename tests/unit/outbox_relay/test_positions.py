"""Whatever the order in which Kafka acknowledges, nothing is confirmed that is not wholly there."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onceward_outbox_relay.positions import Chunk, Positions


class Row:
    """One row of the model: where its transaction ends, once that is read, and what counts it."""

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.end: int | None = None
        self.settled = False


class ARelayReadsTransactions(RuleBasedStateMachine):
    """Transactions arrive, chunks are closed anywhere, rows are settled in any order, connections are lost."""

    def __init__(self) -> None:
        super().__init__()
        self.positions: Positions[Chunk] = Positions()
        self.end = 0
        self.rows: list[Row] = []
        self.half_read: list[Row] = []

    @precondition(lambda self: not self.positions.in_transaction)
    @rule()
    def begin(self) -> None:
        self.positions.begin()

    @precondition(lambda self: self.positions.in_transaction)
    @rule()
    def insert(self) -> None:
        self.positions.open.wanted += 1
        self.half_read.append(Row(self.positions.open))

    @precondition(lambda self: self.positions.in_transaction)
    @rule()
    def commit(self) -> None:
        self.end += 10
        for row in self.half_read:
            row.end = self.end
        self.rows += self.half_read
        self.half_read = []
        self.positions.commit(self.end)

    @rule()
    def close(self) -> None:
        self.positions.close()

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        if waiting := [row for row in self.rows + self.half_read if not row.settled]:
            row = data.draw(st.sampled_from(waiting))
            row.settled = True
            row.chunk.settled += 1

    @rule()
    def keepalive(self) -> None:
        self.positions.keepalive(self.end + 3)

    @rule()
    def lose_the_connection(self) -> None:
        assert self.positions.interrupted() <= max(self.end + 3, self.end)
        self.half_read = []  # will be read again; what is settled of it now is a repeat later

    @rule()
    def lose_the_producer(self) -> None:
        assert self.positions.rewound() == self.positions.acknowledged
        self.rows = [row for row in self.rows if row.end is not None and row.end <= self.positions.acknowledged]
        self.half_read = []
        self.end = max(self.end, self.positions.acknowledged)

    @invariant()
    def nothing_on_its_way_is_confirmed(self) -> None:
        confirmed = self.positions.advance()
        assert all(row.settled for row in self.rows if row.end is not None and row.end <= confirmed)

    @invariant()
    def everything_settled_is_confirmed(self) -> None:
        if not self.positions.waiting:
            assert self.positions.advance() >= self.positions.read


TestPositions = ARelayReadsTransactions.TestCase
TestPositions.settings = settings()
