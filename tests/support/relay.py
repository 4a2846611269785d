"""What the relay's tests share: a relay process to kill, writers that hold their keys' locks, and a reader of its own."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from pydantic import SecretStr

from onceward_outbox_relay.relay import Relay, RelayOptions
from onceward_runtime.settings import Settings

PARTITIONS = 4


def until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until a condition holds; fails with `what` when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def make_topic(bootstrap: str, name: str, **config: str) -> str:
    """Create a topic and return its name."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1, config=config)]).values():
        future.result(10)
    return name


def slot_name(dsn: str) -> str:
    """A slot of the test's own database."""
    return "relay_" + dsn.rsplit("/", 1)[1].replace("-", "_")[-40:]


def _die_with_parent() -> None:
    """A test that fails leaves no relay behind (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class RelayProcess:
    """`onceward relay` in a process of its own."""

    def __init__(self, dsn: str, bootstrap: str, log: Path, *arguments: str, slot: str | None = None) -> None:
        self.slot = slot or slot_name(dsn)
        self._log = log
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONCEWARD_")}
        environment |= {
            "ONCEWARD_DATABASE_URL": dsn,
            "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS": bootstrap,
            "ONCEWARD_SLOT": self.slot,
            "ONCEWARD_LOG_FORMAT": "json",
        }
        command = [sys.executable, "-m", "onceward_cli.main", "relay", *arguments]
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdout=output,
                stderr=output,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  it calls one C function
            )

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def said(self, event: str) -> bool:
        """Whether the log has an event."""
        return f'"{event}"' in self._log.read_text()

    def wait_for(self, event: str, seconds: float = 20) -> None:
        """Wait for an event in the log."""
        until(lambda: self.said(event) or self.process.poll() is not None, seconds, f"{event}: {self._log.read_text()}")
        assert self.said(event), self._log.read_text()


@dataclass
class Committed:
    """What writers committed and rolled back: by id, the key and the number within the key."""

    rows: dict[str, tuple[str, int]] = field(default_factory=dict)
    rolled_back: set[str] = field(default_factory=set)


class Writers:
    """Threads that publish under their keys' locks, some rows to a transaction, some rolled back. `stop` returns the result."""

    def __init__(self, dsn: str, topic: str, *, threads: int = 4, keys: int = 40, pause_seconds: float = 0.002) -> None:
        self._dsn = dsn
        self._topic = topic
        self._pause_seconds = pause_seconds
        self._stopping = threading.Event()
        self._results = [Committed() for _ in range(threads)]
        self.error: Exception | None = None
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create table if not exists counters (key text primary key, n int not null default 0)")
            connection.execute("create table if not exists written (id uuid, key text, n int)")
            connection.execute(
                "insert into counters select 'k' || g from generate_series(1, %s) g on conflict do nothing", (keys,)
            )
        self._keys = keys
        self._threads = [threading.Thread(target=self._write, args=(i, r)) for i, r in enumerate(self._results)]
        for thread in self._threads:
            thread.start()

    @property
    def count(self) -> int:
        return sum(len(result.rows) for result in self._results)

    def stop(self) -> Committed:
        """End the writers; returns what they did."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)
        if self.error is not None:
            raise self.error
        every = Committed()
        for result in self._results:
            every.rolled_back |= result.rolled_back
        with psycopg.connect(self._dsn) as connection:  # a commit whose answer was lost counts too
            for identity, key, number in connection.execute("select id::text, key, n from written"):
                every.rows[identity] = (key, number)
        return every

    def _write(self, number: int, result: Committed) -> None:
        chance = random.Random(number)
        connection: psycopg.Connection[tuple[object, ...]] | None = None
        while not self._stopping.is_set():
            try:
                connection = connection or psycopg.connect(self._dsn)
                self._transaction(connection, chance, result)
            except psycopg.OperationalError:  # the server restarts
                if connection is not None:
                    connection.close()
                connection = None
                self._stopping.wait(0.1)
            except Exception as error:
                self.error = error
                return
            self._stopping.wait(self._pause_seconds)
        if connection is not None:
            connection.close()

    def _transaction(
        self, connection: psycopg.Connection[tuple[object, ...]], chance: random.Random, result: Committed
    ) -> None:
        rows: dict[str, tuple[str, int]] = {}
        for key in sorted(f"k{chance.randint(1, self._keys)}" for _ in range(chance.choice((1, 1, 1, 3)))):
            counted = connection.execute("update counters set n = n + 1 where key = %s returning n", (key,)).fetchone()
            assert counted is not None
            insert = (
                "insert into onceward.outbox (id, aggregatetype, aggregateid, type, payload, topic)"
                " values (gen_random_uuid(), 'test', %s, 'Counted', %s, %s) returning id::text"
            )
            row = connection.execute(insert, (key, str(counted[0]).encode(), self._topic)).fetchone()
            assert row is not None
            rows[str(row[0])] = (key, int(str(counted[0])))
            connection.execute("insert into written values (%s, %s, %s)", (row[0], key, counted[0]))
        if chance.random() < 0.1:
            connection.rollback()
            result.rolled_back |= rows.keys()
        else:
            connection.commit()
            result.rows |= rows


@dataclass(frozen=True)
class Read:
    """One record as a reader saw it."""

    id: str
    key: str | None
    value: bytes | None
    partition: int
    headers: dict[str, bytes | None]


def read(bootstrap: str, topic: str, wanted: int, seconds: float = 20) -> list[Read]:
    """Read a topic from its start until `wanted` different ids were seen, or the time is over; then what is left."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "relay-test", "log_level": 0})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    found: list[Read] = []
    seen: set[str] = set()
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(0.2 if len(seen) >= wanted else 1.0)
            if message is None:
                if len(seen) >= wanted:
                    break
                continue
            assert message.error() is None, message.error()
            pairs: list[tuple[str, bytes | None]] = message.headers() or []  # type: ignore[assignment]
            headers = dict(pairs)
            key, value = message.key(), message.value()
            identity = (headers.get("id") or b"").decode()
            text = None if key is None else (_bytes(key) or b"").decode()
            found.append(Read(identity, text, _bytes(value), message.partition() or 0, headers))
            seen.add(identity)
    finally:
        consumer.close()
    return found


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def check_promises(records: list[Read], committed: Committed) -> int:
    """Nothing lost, nothing that was rolled back, first occurrences in order within a key. Returns the repeats."""
    first: dict[str, Read] = {}
    for record in records:
        first.setdefault(record.id, record)
    missing = committed.rows.keys() - first.keys()
    assert not missing, f"{len(missing)} of {len(committed.rows)} rows never came: {sorted(missing)[:3]}"
    assert not committed.rolled_back & first.keys(), "a rolled-back row came out"
    assert not first.keys() - committed.rows.keys(), "a row came that nobody wrote"
    last: dict[str, int] = {}
    for identity, record in first.items():
        key, number = committed.rows[identity]
        assert record.key == key
        assert record.value == str(number).encode()
        assert last.get(key, 0) < number, f"{key}: {number} came after {last.get(key)}"
        last[key] = number
    return len(records) - len(first)


@contextmanager
def running_relay(dsn: str, bootstrap: str, options: RelayOptions | None = None) -> Iterator[Relay]:
    """A relay in this process, once it relays."""
    settings = Settings(database_url=SecretStr(dsn), kafka_bootstrap_servers=bootstrap, slot=slot_name(dsn))
    relay = Relay(settings, options)
    relay.start()
    try:
        until(lambda: relay.active or relay.ended, 20, "the relay is active")
        yield relay
    finally:
        relay.stop()


def publish(dsn: str, topic: str, *rows: tuple[str | None, bytes | None]) -> list[int]:
    """Insert a row for each key and payload, each in its own transaction; returns their numbers."""
    insert = (
        "insert into onceward.outbox (id, aggregatetype, aggregateid, type, payload, topic)"
        " values (gen_random_uuid(), 'test', %s, 'Tested', %s, %s) returning seq"
    )
    numbers = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        for key, payload in rows:
            row = connection.execute(insert, (key, payload, topic)).fetchone()
            assert row is not None
            numbers.append(int(row[0]))
    return numbers


def outbox_rows(dsn: str) -> int:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute("select count(*) from onceward.outbox").fetchone()
        assert row is not None
        return int(row[0])
