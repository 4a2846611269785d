"""The broker, the database and the registry die, one after the other and for seconds, while services write and `onceward relay`
and `onceward worker` run; and records of a schema that was never seen before arrive while the registry is away.

Promised: both processes live on and go on by themselves once the server is back; every committed command takes effect once
and in order; nothing becomes a dead letter or is parked because a server was away. Publishing without a registry, or with one
that hangs, is a clear error that leaves no row.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pytest

from onceward_consumer.app import App
from onceward_consumer.policy import fixed
from onceward_devstack.stack import Stack
from onceward_producer.outbox import Outbox
from onceward_schemas.avsc import command_schema
from onceward_schemas.codec import Codec
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.errors import RegistryUnavailableError
from onceward_schemas.registry import RegistryClient
from tests.support import onceward_command as cli
from tests.support.commands import Increment
from tests.support.consumers import Group, eventually, group_of
from tests.support.databases import fresh_database
from tests.support.fake_http import answering
from tests.support.raw_records import RawProducer, heads
from tests.support.services import Services

LANE = "shop.lane"


@dataclass(frozen=True, slots=True, kw_only=True)
class Later(Command):
    """Increment as a later release writes it."""

    counter: str
    amount: int = 1
    note: str | None = None
    added: int = 0

    SCHEMA: ClassVar[CommandSchema] = command_schema(
        """{"type": "record", "name": "Increment", "namespace": "test",
        "onceward": {"version": 2, "lane": "test.counter", "key": "counter", "aggregate": "counter", "owner": "tests"},
        "fields": [{"name": "counter", "type": "string"}, {"name": "amount", "type": "long", "default": 1},
        {"name": "note", "type": ["null", "string"], "default": null}, {"name": "added", "type": "int", "default": 0}]}"""
    )


def amounts(dsn: str) -> list[int]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return [row[0] for row in connection.execute("select amount from effect order by seq")]


def test_servers_that_come_back_cost_nothing_but_time(own_stack: Stack, tmp_path: Path) -> None:
    services = Services(own_stack.kafka.bootstrap, own_stack.registry.url, own_stack.postgres.dsn, own_stack)
    app = App("shop")
    app.handler(Increment, lane=LANE, retry=fixed("300ms", attempts=2))(lambda command, ctx: None)
    with fresh_database(own_stack.postgres.dsn) as dsn:
        group = group_of(app, services, dsn, partitions=2)
        group.query(cli.EFFECT)
        target = cli.write_application(tmp_path, "shop", LANE)
        settings = cli.environment(services, dsn)
        with (
            cli.running(tmp_path, settings, "relay") as relay,
            cli.running(tmp_path, settings, "worker", target) as worker,
        ):
            sent = _break_one_after_the_other(own_stack, group, dsn)
            sent = _publish(group, sent)
            eventually(lambda: len(amounts(dsn)) >= sent, f"{sent} effects", 60)
            assert not relay.ended
            assert not worker.ended
        assert amounts(dsn) == list(range(sent))
        assert group.states() == {"done": sent}
        for table in ("dead_letters", "parked", "holds", "outbox_parked"):
            assert not group.count(f"select count(*) from onceward.{table}"), table


def _break_one_after_the_other(stack: Stack, group: Group, dsn: str) -> int:
    """Returns how many commands were sent, all of one key."""
    sent = _publish(group, 0)
    eventually(lambda: len(amounts(dsn)) >= 3, "first effects", 60)
    stack.kafka.kill()
    sent = _publish(group, sent)  # commits go on without the broker
    stack.kafka.start()
    eventually(lambda: len(amounts(dsn)) >= sent, "effects after the broker's death", 60)
    sent = _publish(group, sent)
    stack.postgres.kill()
    stack.postgres.start()
    sent = _publish(group, sent)
    eventually(lambda: len(amounts(dsn)) >= sent, "effects after the database's death", 60)

    registry = RegistryClient(stack.registry.url)
    eventually(lambda: _registered(registry), "registry that has its database back", 60)
    payload = Codec(registry).encode(Later(counter="a", amount=sent, added=5))
    stack.registry.kill()
    RawProducer(stack.kafka.bootstrap).send(LANE, b"a", payload, heads("test.Increment", version="2"))
    sent = _publish(group, sent + 1)  # follows it: of a known schema, but of the same key
    _refuse_to_publish(stack.registry.url, dsn)
    assert len(amounts(dsn)) < sent
    stack.registry.start()
    eventually(lambda: len(amounts(dsn)) >= sent, "effects after the registry's death", 60)
    return sent


def _registered(registry: RegistryClient) -> bool:
    try:
        return bool(registry.register("test.Increment", Later.SCHEMA.avro))
    except RegistryUnavailableError:
        return False


def _publish(group: Group, first: int, count: int = 3) -> int:
    group.publish([Increment(counter="a", amount=number) for number in range(first, first + count)])
    return first + count


def _refuse_to_publish(url: str, dsn: str) -> None:
    """A process that has not asked the registry yet cannot encode; it is told so, and nothing is written."""
    outbox = Outbox(Codec(RegistryClient(url, timeout_seconds=1)))
    with psycopg.connect(dsn) as connection, pytest.raises(RegistryUnavailableError) as caught:
        outbox.publish(connection, Increment(counter="refused"))
    assert "Check ONCEWARD_REGISTRY_URL" in str(caught.value.remedy)


def test_publishing_with_a_hung_registry_ends_with_the_time_out(database: str) -> None:
    def hang(_: Any) -> None:
        time.sleep(3)

    with answering(hang) as server, psycopg.connect(database) as connection:
        outbox = Outbox(Codec(RegistryClient(server.url, timeout_seconds=0.5)))
        began = time.monotonic()
        with pytest.raises(RegistryUnavailableError, match=r"did not answer within 0\.5 s"):
            outbox.publish(connection, Increment(counter=str(uuid.uuid4())))
        assert time.monotonic() - began < 2
        connection.commit()
        assert connection.execute("select count(*) from onceward.outbox").fetchone() == (0,)
