"""Where is measured: services with default settings, started here or given, and fresh databases and topics on them."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from onceward_devstack.stack import temporary_stack
from onceward_runtime import migrate, settings

PARTITIONS = 4
_TABLES = """
create table effect (job int not null, account int not null, at timestamptz not null default clock_timestamp());
create table by_hand_ledger (id uuid primary key, at timestamptz not null default now());
"""


@dataclass
class Place:
    """The services, and a name of our own on them."""

    bootstrap: str
    dsn: str
    registry: str
    own: bool
    """Whether the services are this process's children, so that their CPU is known to be ours."""
    kafka: str = "of unknown version"
    name: str = field(default_factory=lambda: f"bench_{uuid.uuid4().hex[:8]}")
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def environment(self, dsn: str | None = None) -> dict[str, str]:
        """The settings for a process that is measured."""
        return {
            "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS": self.bootstrap,
            "ONCEWARD_REGISTRY_URL": self.registry,
            "ONCEWARD_DATABASE_URL": dsn or self.dsn,
            "ONCEWARD_LOG_LEVEL": "error",
        }

    def unique(self) -> str:
        """A name that nothing else has."""
        return f"{self.name}_{next(self.numbers)}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """A fresh, migrated database; dropped with its slots afterwards."""
        name = self.unique()
        with self._admin() as admin:
            admin.execute(f"create database {name} template {self.name}")
            admin.execute("checkpoint")
        try:
            yield self._dsn_of(name)
        finally:
            self._drop(name)

    def _dsn_of(self, name: str) -> str:
        return urlsplit(self.dsn)._replace(path=f"/{name}").geturl()

    def _admin(self) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(self.dsn, autocommit=True)

    def make_template(self) -> None:
        """The database that the others are copies of."""
        with self._admin() as admin:
            admin.execute(f"create database {self.name}")
        dsn = self._dsn_of(self.name)
        migrate.apply(dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute(_TABLES)

    def _drop(self, name: str) -> None:
        with self._admin() as admin:
            end = "select pg_terminate_backend(active_pid) from pg_replication_slots where database = %s and active"
            admin.execute(end, (name,))
            free = "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = %s"
            admin.execute(free, (name,))
            admin.execute(f"drop database {name} with (force)")

    def make_topic(self, name: str, partitions: int = PARTITIONS) -> str:
        """An empty topic."""
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        for future in client.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(20)
        return name

    def clean(self) -> None:
        """Remove what given services should not keep."""
        client = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        ours = [topic for topic in client.list_topics(timeout=10).topics if topic.startswith(self.name)]
        if ours:
            for future in client.delete_topics(ours).values():
                future.result(20)
        self._drop(self.name)


@contextmanager
def place(given: bool) -> Iterator[Place]:
    """The services of the ONCEWARD_* settings, or a stack of its own with PostgreSQL's and Kafka's default durability."""
    if given:
        found = settings.load()
        chosen = Place(found.kafka_bootstrap_servers, found.dsn, found.registry_url, own=False)
        chosen.make_template()
        try:
            yield chosen
        finally:
            chosen.clean()
        return
    with temporary_stack() as stack:
        chosen = Place(
            stack.kafka.address, stack.postgres.address, stack.registry.address, own=True, kafka=stack.kafka.version
        )
        chosen.make_template()
        yield chosen
