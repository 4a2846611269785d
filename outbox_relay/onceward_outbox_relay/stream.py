"""One connected stream: reads inserts from the write-ahead log, forwards them, and confirms what Kafka has.

The inner loop reads until nothing is there, so rows gather into large batches under load, and are flushed at once when
there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import psycopg

from onceward_outbox_relay import pgoutput
from onceward_outbox_relay.forward import Forwarder
from onceward_outbox_relay.kafka_sink import Batch, KafkaSink
from onceward_outbox_relay.keeper import Keeper
from onceward_outbox_relay.layout import Layout
from onceward_outbox_relay.positions import Positions
from onceward_outbox_relay.replication import ReplicationLink, StreamEndedError
from onceward_runtime import events
from onceward_schemas.errors import DatabaseError

_CHUNK_ROWS: Final = 500
_FEW_ROWS: Final = 16
"""So many rows on their way are sent at once."""
_CONFIRM_SECONDS: Final = 0.25
_SILENCE_SECONDS: Final = 2.0
"""A status at least so often: well under a third of the server's time-out."""
_DEAD_SECONDS: Final = 20.0
_SHUTDOWN_SECONDS: Final = 3.0
_ACCOUNT_SECONDS: Final = 1.0
_XLOG, _KEEPALIVE = ord("w"), ord("k")
_BODY: Final = 25
"""Where the pgoutput message begins in a piece of copy data."""
_UNIX_OF_2000: Final = 946_684_800


class DrainTimeoutError(Exception):
    """Stopping took too long; what is unconfirmed will be repeated."""


class Stream:
    """Owned by the relay's thread. `run` returns when `stopping` says so; every other end is an exception."""

    def __init__(
        self,
        link: ReplicationLink,
        keeper: Keeper,
        forwarder: Forwarder,
        sink: KafkaSink,
        positions: Positions[Batch],
        *,
        layout: Layout,
        slot: str,
        flush_seconds: float,
    ) -> None:
        self._link = link
        self._keeper = keeper
        self._forwarder = forwarder
        self._sink = sink
        self._positions = positions
        self._table = (layout.schema, layout.table)
        self._flush_seconds = flush_seconds
        self.confirmed = 0
        """The furthest position told to the server."""
        self._lost: Exception | None = None
        self._stopping: Callable[[], bool] = _never
        self._beat: Callable[[], None] = _nothing
        self._drain_seconds = 0.0
        self._deadline: float | None = None
        now = time.monotonic()
        self._confirm_due = self._silence_due = self._account_due = now
        self._received = now
        self._asked_since: float | None = None
        self._begun = b""
        self._rows_reported = positions.rows - forwarder.parked
        self._commits = self._commits_reported = self._bytes = 0
        self._read_bytes = events.RELAY_BYTES.labels(slot=slot)
        self._transactions = events.RELAY_TRANSACTIONS.labels(slot=slot)
        self._relayed = events.RELAY_ROWS.labels(slot=slot, outcome="relayed")
        self._pending = events.RELAY_PENDING_ROWS.labels(slot=slot)
        self._lag = events.RELAY_LAG_SECONDS.labels(slot=slot)

    def run(self, stopping: Callable[[], bool], beat: Callable[[], None], drain_seconds: float) -> None:
        """Stream until asked to stop, then wait for what is on its way and confirm it.

        Raises: StreamEndedError when the connection is lost, always between two rows; SinkFailedError when the producer
        is; psycopg.Error when rows cannot be parked; PoisonRowError by policy; MalformedMessageError.
        """
        self._stopping, self._beat, self._drain_seconds = stopping, beat, drain_seconds
        while not stopping():
            if not self._read():
                self._settle()
                self._link.wait(0.005 if self._positions.waiting else 0.2)
        self._deadline = time.monotonic() + drain_seconds
        self._positions.close()
        while self._positions.waiting and time.monotonic() < self._deadline:
            self._forwarder.tick()
            self._sink.flush(0.02)
            self._positions.advance()
            self.pulse()

    def _read(self) -> bool:
        """Take in up to a chunk of rows; returns whether there may be more at once."""
        receive, forward, values_of = self._link.receive, self._forwarder.forward, pgoutput.insert_values
        positions = self._positions
        batch = positions.open
        while True:
            try:
                size, data = receive(1)
            except psycopg.OperationalError as error:
                raise StreamEndedError(str(error).strip(), None) from error
            if size > 0:
                message = bytes(data)
                if message[0] == _XLOG:
                    kind = message[_BODY]
                    if kind == pgoutput.INSERT:
                        self._bytes += size
                        forward(values_of(message, _BODY), batch)
                        if batch.wanted >= _CHUNK_ROWS:
                            self._close()
                            return True
                    elif kind == pgoutput.COMMIT:
                        positions.commit(pgoutput.commit_end_lsn(message, _BODY))
                        self._commits += 1
                    elif kind == pgoutput.BEGIN:
                        positions.begin()
                        self._begun = message
                    elif kind == pgoutput.RELATION:
                        self._relation(pgoutput.relation(message, _BODY))
                elif message[0] == _KEEPALIVE:
                    self._keepalive(message)
            elif size == 0:
                self._received = self._received if batch is positions.open and not batch.wanted else time.monotonic()
                return False
            else:
                raise self._link.ended()

    def _close(self) -> None:
        """A chunk is full while more rows wait: no flush, so that batches grow."""
        self._received = time.monotonic()
        self._positions.close().committed_at = self._committed_at()
        self._sink.poll(0)
        self._positions.advance()
        self.pulse()
        self._raise_lost()

    def _settle(self) -> None:
        """Nothing is there to read: send what there is without waiting for more."""
        positions = self._positions
        if positions.open.wanted:
            positions.close().committed_at = self._committed_at()
        if 0 < self._sink.outstanding <= _FEW_ROWS:
            self._sink.flush(self._flush_seconds)  # else the producer's linger gathers larger batches
        else:
            self._sink.poll(0)
        self._forwarder.tick()
        positions.advance()
        self.pulse()
        self._raise_lost()
        keeper = self._keeper
        if keeper.releasable:
            self._forwarder.release()
            keeper.releasable = False
            keeper.blocked = bool(self._forwarder.blocked)

    def _raise_lost(self) -> None:
        if self._lost is not None:
            raise StreamEndedError(str(self._lost).strip(), None) from self._lost
        if time.monotonic() - self._received > _DEAD_SECONDS:
            raise StreamEndedError(f"the server has been silent for {_DEAD_SECONDS:.0f} s", None)

    def _relation(self, relation: pgoutput.Relation) -> None:
        if (relation.schema, relation.table) != self._table:
            raise DatabaseError(
                f"The publication brings rows of {relation.schema}.{relation.table} too.",
                remedy=f"Let it cover {'.'.join(self._table)} and nothing else.",
            )
        self._forwarder.columns(relation.columns)

    # -- what the server hears from us

    def _keepalive(self, message: bytes) -> None:
        positions = self._positions
        self._received = now = time.monotonic()
        positions.advance()
        positions.keepalive(int.from_bytes(message[1:9]))
        if not message[17]:
            return
        # The server waits for an answer. While it shuts down it asks again and again until all is confirmed; then the
        # keeper's connection is gone already.
        keeper = self._keeper
        keeper.acknowledged = positions.acknowledged
        if keeper.broken and positions.idle:
            self._confirm(positions.acknowledged)
            return
        if keeper.broken and not positions.idle:
            self._asked_since = self._asked_since or now
            if now - self._asked_since > _SHUTDOWN_SECONDS:
                raise StreamEndedError("the server seems to shut down, and Kafka has not taken everything yet", None)
        else:
            self._asked_since = None
        keeper.urgent = positions.acknowledged > keeper.remembered
        if keeper.urgent:
            keeper.wake()
        self._confirm(keeper.remembered)

    def pulse(self) -> None:
        """Called often, also while Kafka's queue is full: a status when one is due. Never raises for a lost connection.

        Raises: DrainTimeoutError.
        """
        now = time.monotonic()
        if now < self._confirm_due:
            return
        if self._deadline is None and self._stopping():
            self._deadline = now + self._drain_seconds
        if self._deadline is not None and now > self._deadline:
            raise DrainTimeoutError
        self._confirm_due = now + _CONFIRM_SECONDS
        positions, keeper = self._positions, self._keeper
        keeper.acknowledged, keeper.rows = positions.acknowledged, positions.rows
        keeper.blocked = bool(self._forwarder.blocked)
        self._beat()
        if keeper.remembered > self.confirmed or keeper.waiting or now >= self._silence_due:
            self._confirm(keeper.remembered)
        if now >= self._account_due:
            self._account_due = now + _ACCOUNT_SECONDS
            self.account()

    def _confirm(self, lsn: int) -> None:
        self.confirmed = max(self.confirmed, lsn)
        self._silence_due = time.monotonic() + _SILENCE_SECONDS
        try:
            self._link.confirm(self.confirmed, reply=True)
        except psycopg.OperationalError as error:
            self._lost = error

    def account(self) -> None:
        """Bring the metrics up to date."""
        positions = self._positions
        relayed = positions.rows - self._forwarder.parked
        if relayed > self._rows_reported:
            self._sink.heard()
            self._relayed.inc(relayed - self._rows_reported)
            self._rows_reported = relayed
        self._transactions.inc(self._commits - self._commits_reported)
        self._commits_reported = self._commits
        self._read_bytes.inc(self._bytes)
        self._bytes = 0
        self._pending.set(positions.unsettled)
        oldest = positions.oldest
        self._lag.set(max(0.0, time.time() - oldest.committed_at) if oldest else 0.0)

    def _committed_at(self) -> float:
        """When the transaction that is being read was committed, by the server's clock."""
        return int.from_bytes(self._begun[_BODY + 9 : _BODY + 17], signed=True) / 1e6 + _UNIX_OF_2000


def _never() -> bool:
    return False


def _nothing() -> None:
    pass
