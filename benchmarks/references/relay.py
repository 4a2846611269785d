"""A relay by hand for onceward.outbox: pgoutput in, Kafka out, acknowledged by the delivered prefix; nothing else.

python -m benchmarks.references.relay SLOT PUBLICATION LINGER_MS
"""

from __future__ import annotations

import select
import signal
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import psycopg
from confluent_kafka import Producer
from psycopg import pq

from onceward_runtime import settings

HEADERS = ("id", "type", "version", "attempt", "tenant", "run_id", "traceparent", "context")
BATCH = 500
STATUS_SECONDS = 0.25
_SIZE = struct.Struct(">I").unpack_from
_POSITION = struct.Struct(">Q").unpack_from
_STATUS = struct.Struct(">cQQQQB").pack
Column = tuple[str, int, Callable[[bytes], bytes] | None]


def uuid_text(raw: bytes) -> bytes:
    """The text of a binary uuid."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}".encode()


def number_text(raw: bytes, known: dict[bytes, bytes] = {}) -> bytes:  # noqa: B006  the cache
    """The text of a binary integer; versions and attempts are few."""
    text = known.get(raw)
    if text is None:
        text = known[raw] = b"%d" % int.from_bytes(raw, "big", signed=True)
    return text


CONVERSIONS: dict[int, Callable[[bytes], bytes]] = {2950: uuid_text, 23: number_text}
"""By type oid; the others are text already."""


class Batch:
    """Rows that are acknowledged together."""

    __slots__ = ("delivered", "end", "rows")

    def __init__(self) -> None:
        self.rows = self.delivered = self.end = 0

    def on_delivery(self, error: Any, message: Any) -> None:
        if error is not None:
            raise RuntimeError(str(error))
        self.delivered += 1


class Relay:
    """One slot to one producer."""

    def __init__(self, dsn: str, slot: str, publication: str, producer: Producer) -> None:
        self.link = psycopg.connect(dsn, replication="database", autocommit=True).pgconn
        start = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{publication}', binary 'true')"
        if self.link.exec_(start.encode()).status != pq.ExecStatus.COPY_BOTH:
            raise SystemExit(self.link.error_message.decode())
        self.producer = producer
        self.batch, self.sent = Batch(), deque[Batch]()
        self.acknowledged = self.told = self.read = 0
        self.due = 0.0
        self.stopping = False
        self.topics: dict[bytes, str] = {}
        self.topic = self.key = self.value = 0
        self.headers: list[Column] = []

    def run(self) -> None:
        poll = select.poll()
        poll.register(self.link.socket, select.POLLIN)
        while not self.stopping:
            size, data = self.link.get_copy_data(1)
            if size > 0:
                raw = bytes(data)
                if raw[0] == 119:
                    self.change(raw)
                else:
                    self.keep_alive(raw)
            elif size == 0:
                self.close()
                poll.poll(2 if self.sent else 200)
                self.link.consume_input()
            else:
                raise SystemExit(self.link.error_message.decode())
        self.producer.flush(10)
        self.confirm(time.monotonic())

    def change(self, raw: bytes) -> None:
        """One message, after 25 bytes about the stream."""
        kind = raw[25]
        if kind == 73:  # insert
            self.forward(raw)
            if self.batch.rows == BATCH:
                self.close()
        elif kind == 67:  # commit
            self.read = _POSITION(raw, 35)[0]
        elif kind == 82:  # relation
            self.describe(raw)

    def describe(self, raw: bytes) -> None:
        """Where the columns are."""
        at = raw.index(0, 30) + 1
        at = raw.index(0, at) + 2
        columns: dict[str, tuple[int, int]] = {}
        count = int.from_bytes(raw[at : at + 2], "big")
        at += 2
        for position in range(count):
            end = raw.index(0, at + 1)
            columns[raw[at + 1 : end].decode()] = (position, _SIZE(raw, end + 1)[0])
            at = end + 9
        self.topic, self.key, self.value = (columns[name][0] for name in ("topic", "aggregateid", "payload"))
        self.headers = [(name, columns[name][0], CONVERSIONS.get(columns[name][1])) for name in HEADERS]

    def forward(self, raw: bytes) -> None:
        """Decode a row and produce it."""
        values: list[bytes | None] = []
        at = 33
        for _ in range(int.from_bytes(raw[31:33], "big")):
            if raw[at] == 110:  # null
                values.append(None)
                at += 1
            else:
                begin = at + 5
                at = begin + _SIZE(raw, at + 1)[0]
                values.append(raw[begin:at])
        headers = [
            (name, value if (value := values[position]) is None or convert is None else convert(value))
            for name, position, convert in self.headers
        ]
        routed: bytes = values[self.topic]  # type: ignore[assignment]
        topic = self.topics.get(routed)
        if topic is None:
            topic = self.topics[routed] = routed.decode()
        batch = self.batch
        batch.rows += 1
        while True:
            try:
                self.producer.produce(
                    topic,
                    values[self.value],
                    values[self.key],
                    headers=headers,  # type: ignore[arg-type]
                    on_delivery=batch.on_delivery,
                )
                return
            except BufferError:
                self.producer.poll(0.01)

    def close(self) -> None:
        """End the batch, and acknowledge what is delivered."""
        if self.batch.rows:
            self.batch.end = self.read
            self.sent.append(self.batch)
            self.batch = Batch()
        self.producer.poll(0)
        while self.sent and self.sent[0].delivered == self.sent[0].rows:
            self.acknowledged = max(self.acknowledged, self.sent.popleft().end)
        if not self.sent:
            self.acknowledged = max(self.acknowledged, self.read)
        now = time.monotonic()
        if now >= self.due and self.acknowledged > self.told:
            self.confirm(now)

    def keep_alive(self, raw: bytes) -> None:
        if not self.sent and not self.batch.rows:
            self.acknowledged = max(self.acknowledged, _POSITION(raw, 1)[0])
        if raw[17]:
            self.confirm(time.monotonic())

    def confirm(self, now: float) -> None:
        self.due, self.told = now + STATUS_SECONDS, self.acknowledged
        self.link.put_copy_data(_STATUS(b"r", self.told, self.told, self.told, 0, 0))
        self.link.flush()

    def stop(self, *_: object) -> None:
        self.stopping = True


def main() -> None:
    slot, publication, linger = sys.argv[1:4]
    found = settings.load()
    producer = Producer(
        {
            "bootstrap.servers": found.kafka_bootstrap_servers,
            "acks": "all",
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": float(linger),
            "queue.buffering.max.messages": 100_000,
            "queue.buffering.max.kbytes": 65_536,
        }
    )
    relay = Relay(found.dsn, slot, publication, producer)
    signal.signal(signal.SIGTERM, relay.stop)
    relay.run()


if __name__ == "__main__":
    main()
