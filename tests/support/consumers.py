"""A consumer group for tests: topics, registered schemas, commands published through the outbox, and what moves them."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self
from uuid import UUID

import psycopg
from confluent_kafka import Producer
from pydantic import SecretStr

from onceward_consumer import topics
from onceward_consumer.app import App
from onceward_consumer.worker import Worker, WorkerOptions
from onceward_producer.rows import INSERT_MANY, OutboxRow, arrays, row
from onceward_runtime.settings import Settings
from onceward_schemas import headers
from onceward_schemas.codec import Codec
from onceward_schemas.command import Command
from onceward_schemas.registry import RegistryClient
from tests.support.commands import Increment
from tests.support.services import Services

DEADLINE_SECONDS = 30.0


def eventually(found: Callable[[], Any], what: str, seconds: float = DEADLINE_SECONDS) -> Any:
    """Wait until `found` gives something true, and return it."""
    until = time.monotonic() + seconds
    while not (value := found()):
        if time.monotonic() > until:
            raise AssertionError(f"after {seconds} s there is still no {what}")
        time.sleep(0.02)
    return value


class Forwarder:
    """Moves outbox rows to Kafka in order, as the relay does, and deletes them once they are acknowledged."""

    def __init__(self, dsn: str, bootstrap: str) -> None:
        self._dsn = dsn
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.forwarded: list[tuple[str, UUID, int]] = []
        """Topic, command id and attempt of each record."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        columns = ", ".join(OutboxRow._fields)
        connection: psycopg.Connection[Any] | None = None
        while not self._stopping.wait(0.01):
            try:
                if connection is None or connection.closed:
                    connection = psycopg.connect(self._dsn, autocommit=True)
                rows = connection.execute(f"select seq, {columns} from onceward.outbox order by seq limit 5000")
                for seqs in self._produce(rows.fetchall()):
                    connection.execute("delete from onceward.outbox where seq = any(%s)", (seqs,))
            except psycopg.Error:
                continue
        if connection is not None:
            connection.close()

    def _produce(self, rows: list[tuple[Any, ...]]) -> Iterator[list[int]]:
        seqs = []
        for seq, *values in rows:
            found = OutboxRow(*values)
            pairs = [(name, _text(getattr(found, name))) for name in headers.ALL]
            key = None if found.aggregateid is None else found.aggregateid.encode()
            self._producer.produce(found.topic, value=found.payload, key=key, headers=pairs)  # type: ignore[arg-type]
            self.forwarded.append((found.topic, found.id, found.attempt))
            seqs.append(seq)
        if seqs:
            assert self._producer.flush(30) == 0
            yield seqs


def _text(value: Any) -> bytes | None:
    return None if value is None else str(value).encode()


@dataclass(frozen=True)
class Group:
    """An app with everything around it."""

    app: App
    settings: Settings
    codec: Codec

    @property
    def dsn(self) -> str:
        return self.settings.dsn

    def publish(self, commands: Iterable[Command], **options: Any) -> list[UUID]:
        """Publish to the lanes of the app's handlers, in one transaction."""
        rows = []
        for command in commands:
            made = row(command, self.codec, **options)
            handler = self.app.handlers.get(made.type)
            rows.append(made if handler is None else made._replace(topic=handler.lane))
        with psycopg.connect(self.dsn) as connection:
            connection.execute(INSERT_MANY, arrays(rows))
        return [each.id for each in rows]

    def relane(self) -> None:
        """Follow-ups go to the lane in their schema: send them to the lanes of the app's handlers instead."""
        lanes = {handler.command.SCHEMA.lane: handler.lane for handler in self.app.handlers.values()}
        cases = " ".join(f"when '{lane}' then '{ours}'" for lane, ours in lanes.items())
        self.query(
            "create function relane() returns trigger language plpgsql as $$ begin"
            f" new.topic := case new.topic {cases} else new.topic end; return new; end $$"
        )
        self.query("create trigger relane before insert on onceward.outbox for each row execute function relane()")

    def worker(self, **options: Any) -> Worker:
        """A worker that starts."""
        return Worker(self.app, self.settings, WorkerOptions(**options))

    @contextmanager
    def running(self, **options: Any) -> Iterator[Worker]:
        """A worker for the time of the block, in this process."""
        worker = self.worker(**options)
        worker.start()
        try:
            yield worker
        finally:
            worker.stop()

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of a statement."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def count(self, statement: str, *parameters: Any) -> int:
        """The number that a statement returns."""
        return int(self.query(statement, *parameters)[0][0])

    def states(self) -> dict[str, int]:
        """How many commands the ledger has in each state."""
        return dict(self.query("select state, count(*)::int from onceward.ledger group by state"))

    def settled(self) -> bool:
        """Whether nothing is left anywhere: no outbox row, no hold, nothing parked, nothing retrying or running."""
        return not self.count(
            "select (select count(*) from onceward.outbox) + (select count(*) from onceward.holds)"
            " + (select count(*) from onceward.parked)"
            " + (select count(*) from onceward.ledger where state in ('retrying', 'running', 'parked'))"
        )


def group_of(app: App, services: Services, dsn: str, *, partitions: int = 4, **settings: Any) -> Group:
    """Register the app's types and create its topics."""
    found = Settings(
        database_url=SecretStr(dsn),
        kafka_bootstrap_servers=services.bootstrap,
        registry_url=services.registry_url,
        **settings,
    )
    registry = RegistryClient(services.registry_url)
    types = [handler.command for handler in app.handlers.values()]
    for kind in types:
        registry.register(kind.SCHEMA.name, kind.SCHEMA.avro)
    topics.apply(app, found, partitions=partitions, replication=1)
    return Group(app, found, Codec(registry, commands=types))


def idle_group(services: Services, dsn: str, prefix: str) -> Group:
    """An app whose handler does nothing, for tests of the worker around it."""
    app = App(app_name(prefix))

    @app.handler(Increment, lane=f"{prefix}counter")
    def increment(command: Increment, ctx: Any) -> None:
        pass

    return group_of(app, services, dsn)


def app_name(prefix: str) -> str:
    """A group that no other test has."""
    return f"{prefix}{uuid.uuid4().hex[:6]}"


__all__ = ["Forwarder", "Group", "app_name", "eventually", "group_of", "idle_group", "replace"]
