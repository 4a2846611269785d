"""Commands of a type that no handler is deployed for, and of a schema that the registry does not know (yet).

Promised: they are parked with that reason and their bytes, their keys wait for them, other keys run on, and they run by themselves,
once and in order, as soon as a worker with a handler is there or the registry knows the schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onceward_consumer.app import App
from onceward_consumer.context import Context
from onceward_consumer.worker import Worker
from onceward_schemas.registry import RegistryClient
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.raw_records import RawProducer, heads
from tests.support.services import Services

EFFECT = "create table effect (seq bigint generated always as identity, type text, number int)"

ORDERED = [("Increment", 1), ("Settle", 7), ("Increment", 8), ("Increment", 9)]

LATE = 2_000_000_000
"""A schema id that the registry gives to nobody."""


class RegisteredLate(RegistryClient):
    """The real registry, once the schema `like` was registered under LATE as well."""

    like: int

    def schema(self, schema_id: int) -> Any:
        return super().schema(self.like if schema_id == LATE else schema_id)


def application(name: str, lane: str, *, both: bool) -> App:
    app = App(name)

    @app.handler(Increment, lane=lane)
    def increment(command: Increment, ctx: Context) -> None:
        ctx.connection.execute("insert into effect (type, number) values ('Increment', %s)", (command.amount,))

    if both:

        @app.handler(Settle, lane=lane)
        def settle(command: Settle, ctx: Context) -> None:
            ctx.connection.execute("insert into effect (type, number) values ('Settle', %s)", (command.batch,))

    return app


@contextmanager
def running(app: App, group: Group, registry: RegistryClient) -> Iterator[Worker]:
    worker = Worker(app, group.settings, registry=registry)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def effects(group: Group) -> list[tuple[Any, ...]]:
    return group.query("select type, number from effect order by seq")


def parked(group: Group) -> list[tuple[Any, ...]]:
    return group.query("select reason, payload from onceward.parked order by seq")


def held(group: Group) -> int:
    return group.count("select count(*) from onceward.parked where reason = 'held'")


def test_a_type_without_a_handler_runs_once_one_is_deployed(
    services: Services, database: str, topic_prefix: str
) -> None:
    name, lane = app_name(topic_prefix), f"{topic_prefix}lane"
    old, new = (application(name, lane, both=both) for both in (False, True))
    group = group_of(new, services, database, partitions=1)
    group.query(EFFECT)
    payload = group.codec.encode(Settle(batch=7))
    RawProducer(services.bootstrap).send(lane, b"a", payload, heads("test.Settle"))
    group.publish(
        [Increment(counter="b", amount=1), Increment(counter="a", amount=8), Increment(counter="a", amount=9)]
    )
    with Forwarder(database, services.bootstrap):
        with running(old, group, RegistryClient(services.registry_url)):
            eventually(lambda: effects(group) == [("Increment", 1)], "effect of another key")
            eventually(lambda: parked(group)[:1] == [("unknown_type", payload)] and held(group) == 2, "parked key")
        with running(new, group, RegistryClient(services.registry_url)):
            eventually(lambda: effects(group) == ORDERED, "effects of the parked key")
            eventually(group.settled, "end of all that waits")
    assert group.states() == {"done": 4}


def test_a_schema_that_is_registered_late_runs_then(services: Services, database: str, topic_prefix: str) -> None:
    name, lane = app_name(topic_prefix), f"{topic_prefix}lane"
    app = application(name, lane, both=True)
    group = group_of(app, services, database, partitions=1)
    group.query(EFFECT)
    payload = group.codec.encode(Settle(batch=7))
    spoiled = b"\0" + LATE.to_bytes(4, "big") + payload[5:]
    RawProducer(services.bootstrap).send(lane, b"a", spoiled, heads("test.Settle"))
    group.publish(
        [Increment(counter="b", amount=1), Increment(counter="a", amount=8), Increment(counter="a", amount=9)]
    )
    with Forwarder(database, services.bootstrap):
        with running(app, group, RegistryClient(services.registry_url)):
            eventually(lambda: effects(group) == [("Increment", 1)], "effect of another key")
            eventually(lambda: parked(group)[:1] == [("schema_missing", spoiled)] and held(group) == 2, "parked key")
        registry = RegisteredLate(services.registry_url)
        registry.like = int.from_bytes(payload[1:5], "big")
        with running(app, group, registry):
            eventually(lambda: effects(group) == ORDERED, "effects of the parked key")
            eventually(group.settled, "end of all that waits")
    assert group.states() == {"done": 4}
