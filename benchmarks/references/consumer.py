"""Consumers by hand: ledger row and effect in one transaction, offsets after it. `python -m benchmarks.references.consumer ...`

decode     read the record's id and decode its value, no database
one        a transaction for each command
timed      as one; the effect is when the record came
threads16  as one, in 16 threads by key
each4      100 in a transaction, ledger by one statement, effects one by one; 4 threads by key
pipe       the same in one thread, the effects in psycopg's pipeline mode
lanes4     100 in a transaction, ledger and effects by one statement each; 4 threads by key
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import resource
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

import fastavro
import psycopg
from confluent_kafka import Consumer, Message, TopicPartition

from benchmarks.charges import EFFECT, ChargeInvoice
from onceward_runtime import settings

SCHEMA = fastavro.parse_schema(dict(ChargeInvoice.SCHEMA.avro))
CLAIM_ONE = "insert into by_hand_ledger (id) values (%s) on conflict do nothing"
CLAIM_MANY = "insert into by_hand_ledger (id) select unnest(%b::uuid[]) on conflict do nothing returning id"
EFFECTS = "insert into effect select * from unnest(%b::int[], %b::int[])"
MOST_OPEN = 4000

Charge = tuple[uuid.UUID, int, int]
"""Id, job and account."""
Work = Callable[[psycopg.Connection[Any], Sequence[Charge]], None]


def decoded(message: Message) -> Charge:
    """The id is the first header."""
    identity = message.headers()[0][1]  # type: ignore[index]
    value: bytes = message.value()  # type: ignore[assignment]
    fields: Any = fastavro.schemaless_reader(BytesIO(value[5:]), SCHEMA, None)
    return uuid.UUID(identity.decode()), fields["job"], int(fields["account"])  # type: ignore[union-attr]


def one_by_one(connection: psycopg.Connection[Any], charges: Sequence[Charge]) -> None:
    """A transaction each."""
    for identity, job, account in charges:
        if connection.execute(CLAIM_ONE, (identity,)).rowcount:
            connection.execute(EFFECT, (job, account))
        connection.commit()


def timed(connection: psycopg.Connection[Any], charges: Sequence[Charge]) -> None:
    """A transaction each, with the time at which its turn came."""
    for identity, job, account in charges:
        now = time.time()
        if connection.execute(CLAIM_ONE, (identity,)).rowcount:
            connection.execute("insert into effect values (%s, %s, to_timestamp(%s))", (job, account, now))
        connection.commit()


def unseen(connection: psycopg.Connection[Any], charges: Sequence[Charge]) -> Sequence[Charge]:
    """Claim them; those that were not claimed before."""
    found = connection.execute(CLAIM_MANY, ([charge[0] for charge in charges],), binary=True)
    if found.rowcount == len(charges):
        return charges
    new = {identity for (identity,) in found}
    return [charge for charge in charges if charge[0] in new]


def plain_statements(connection: psycopg.Connection[Any], charges: Sequence[Charge]) -> None:
    """One transaction, the effects one after the other."""
    for _, job, account in unseen(connection, charges):
        connection.execute(EFFECT, (job, account))
    connection.commit()


def pipelined(connection: psycopg.Connection[Any], charges: Sequence[Charge]) -> None:
    """One transaction, no waiting between the effects."""
    new = unseen(connection, charges)
    with connection.pipeline():
        for _, job, account in new:
            connection.execute(EFFECT, (job, account))
    connection.commit()


def set_wise(connection: psycopg.Connection[Any], charges: Sequence[Charge]) -> None:
    """One transaction of two statements."""
    new = unseen(connection, charges)
    connection.execute(EFFECTS, ([job for _, job, _ in new], [account for _, _, account in new]))
    connection.commit()


VARIANTS: dict[str, tuple[int, int, Work | None]] = {
    "decode": (0, 500, None),
    "one": (0, 100, one_by_one),
    "timed": (0, 100, timed),
    "threads16": (16, 1, one_by_one),
    "each4": (4, 100, plain_statements),
    "pipe": (0, 100, pipelined),
    "lanes4": (4, 100, set_wise),
}
"""Threads, commands in a transaction, and what is done with them."""


class Offsets:
    """What may be committed: for each partition, everything below the first record that is not done."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self._consumer, self._topic = consumer, topic
        self._open: dict[int, deque[list[int]]] = {}

    def took(self, message: Message) -> list[int]:
        """An entry; set its second number to 1 when the record is done."""
        entry = [message.offset(), 0]
        self._open.setdefault(message.partition(), deque()).append(entry)  # type: ignore[arg-type]
        return entry  # type: ignore[return-value]

    def commit(self) -> None:
        ready = []
        for partition, entries in self._open.items():
            last = None
            while entries and entries[0][1]:
                last = entries.popleft()[0]
            if last is not None:
                ready.append(TopicPartition(self._topic, partition, last + 1))
        if ready:
            self._consumer.commit(offsets=ready, asynchronous=True)


class Reading:
    """The records from the first one on, and when that came."""

    def __init__(self, topic: str, count: int) -> None:
        self.consumer = Consumer(
            {
                "bootstrap.servers": settings.load().kafka_bootstrap_servers,
                "group.id": f"by-hand-{uuid.uuid4()}",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "queued.min.messages": 100_000,
            }
        )
        self.consumer.subscribe([topic])
        self.left = count
        self.began = self.cpu = 0.0

    def some(self, most: int) -> list[Message]:
        """The next records, as soon as there is one."""
        found: list[Message] = []
        while not found:
            first = self.consumer.poll(1)
            if first is not None and first.error() is None:
                found = [first, *self.consumer.consume(most - 1, 0)]
        if not self.began:
            self.began, self.cpu = time.perf_counter(), cpu_seconds()
        found = found[: self.left]
        self.left -= len(found)
        return found


def in_one_thread(reading: Reading, topic: str, dsn: str, size: int, work: Work | None) -> None:
    """Read, work, commit the offsets, again."""
    offsets = Offsets(reading.consumer, topic)
    with psycopg.connect(dsn) as connection:
        while reading.left:
            messages = reading.some(size)
            entries = [offsets.took(message) for message in messages]
            charges = [decoded(message) for message in messages]
            if work is not None:
                work(connection, charges)
            for entry in entries:
                entry[1] = 1
            offsets.commit()


def in_threads(reading: Reading, topic: str, dsn: str, threads: int, size: int, work: Work) -> None:
    """Deal the records to threads by their keys."""
    offsets, room = Offsets(reading.consumer, topic), threading.Semaphore(MOST_OPEN)
    inboxes: list[queue.SimpleQueue[tuple[Charge, list[int]] | None]] = [queue.SimpleQueue() for _ in range(threads)]
    workers = [threading.Thread(target=work_off, args=(inbox, dsn, size, work, room)) for inbox in inboxes]
    for worker in workers:
        worker.start()
    while reading.left:
        for message in reading.some(500):
            room.acquire()
            lane = zlib.crc32(message.key()) % threads  # type: ignore[arg-type]
            inboxes[lane].put((decoded(message), offsets.took(message)))
        offsets.commit()
    for inbox in inboxes:
        inbox.put(None)
    for worker in workers:
        worker.join()
    offsets.commit()


def work_off(inbox: queue.SimpleQueue[Any], dsn: str, size: int, work: Work, room: threading.Semaphore) -> None:
    """One thread: as many as are there, at most `size`, in a transaction."""
    with psycopg.connect(dsn) as connection:
        while True:
            taken = [inbox.get()]
            while len(taken) < size and not inbox.empty():
                taken.append(inbox.get())
            ends = taken[-1] is None
            if ends:
                taken.pop()
            if taken:
                work(connection, [charge for charge, _ in taken])
                for _, entry in taken:
                    entry[1] = 1
                room.release(len(taken))
            if ends:
                return


def cpu_seconds() -> float:
    """What this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("variant", choices=VARIANTS)
    parser.add_argument("topic")
    parser.add_argument("count", type=int)
    given = parser.parse_args()
    dsn = settings.load().dsn
    threads, size, work = VARIANTS[given.variant]
    reading = Reading(given.topic, given.count)
    if threads and work is not None:
        in_threads(reading, given.topic, dsn, threads, size, work)
    else:
        in_one_thread(reading, given.topic, dsn, size, work)
    seconds, used = time.perf_counter() - reading.began, cpu_seconds() - reading.cpu
    print(json.dumps({"per_s": given.count / seconds, "cpu_us": used / given.count * 1e6}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
