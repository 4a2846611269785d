"""A key waits for its command that has no handler or schema yet, however that came to be; what is ignored holds nobody up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from onceward_consumer.app import App
from onceward_consumer.failures import Retry
from onceward_consumer.handlers import Order
from onceward_consumer.parked import requeue_resolved
from onceward_consumer.policy import fixed
from onceward_consumer.worker import Worker
from onceward_runtime import events
from onceward_schemas.registry import RegistryClient
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of, replace
from tests.support.raw_records import RawProducer, heads
from tests.support.services import Services

EFFECT = "create table effect (seq bigint generated always as identity, what text)"
STORE = "insert into effect (what) values (%s)"
LATE = 2_000_000_001


class RegisteredLate(RegistryClient):
    """The real registry, once the schema `like` was registered under LATE as well."""

    like: int

    def schema(self, schema_id: int) -> Any:
        return super().schema(self.like if schema_id == LATE else schema_id)


def application(
    name: str, lane: str, *, settles: bool = True, order: Order = "retry", ignores: tuple[str, ...] = ()
) -> App:
    app = App(name, retry=fixed("300ms", attempts=3), ignores=ignores)

    @app.handler(Increment, lane=lane)
    def increment(command: Increment, ctx: Any) -> None:
        if command.note == "fail_once" and ctx.attempt == 1:
            raise Retry("not_yet")
        ctx.connection.execute(STORE, (f"{command.counter}{command.amount}",))

    if settles:

        @app.handler(Settle, lane=lane, order=order)
        def settle(command: Settle, ctx: Any) -> None:
            ctx.connection.execute(STORE, (f"settle{command.batch}",))

    return app


def external(name: str, lane: str, dsn: str) -> App:
    app = App(name, retry=fixed("300ms", attempts=3))

    @app.handler(Increment, lane=lane, mode="external")
    def increment(command: Increment, ctx: Any) -> None:
        if command.note == "fail_once" and ctx.attempt == 1:
            raise Retry("not_yet")
        with psycopg.connect(dsn) as connection:
            connection.execute(STORE, (f"{command.counter}{command.amount}",))

    return app


def effects(group: Group) -> list[str]:
    return [row[0] for row in group.query("select what from effect where what not like 'b%%' order by seq")]


def parked(group: Group) -> list[str]:
    return [row[0] for row in group.query("select reason from onceward.parked order by seq")]


@contextmanager
def running(app: App, group: Group, registry: RegistryClient) -> Iterator[None]:
    worker = Worker(app, group.settings, registry=registry)
    worker.start()
    try:
        yield
    finally:
        worker.stop()


def send(services: Services, group: Group, lane: str, key: str, *commands: Any, late: bool = False) -> None:
    """Straight to the lane, so that order is known; `late` ones of no schema that the registry knows."""
    for command in commands:
        payload = group.codec.encode(command)
        if late:
            payload = b"\0" + LATE.to_bytes(4, "big") + payload[5:]
        RawProducer(services.bootstrap).send(lane, key.encode(), payload, heads(type(command).SCHEMA.name))


def test_a_type_that_turns_out_unknown_when_its_turn_comes_is_the_head_again(
    services: Services, database: str, topic_prefix: str
) -> None:
    name, lane = app_name(topic_prefix), f"{topic_prefix}lane"
    new = application(name, lane)
    old = application(name, lane, settles=False)
    group = group_of(new, services, database, partitions=1)
    group.query(EFFECT)
    send(services, group, lane, "a", Increment(counter="a", amount=1, note="fail_once"), Settle(batch=2))
    send(
        services, group, lane, "a", Increment(counter="a", amount=3), Settle(batch=4), Increment(counter="a", amount=5)
    )
    send(services, group, lane, "b", Increment(counter="b", amount=1))
    with Forwarder(database, services.bootstrap):
        with running(old, group, RegistryClient(services.registry_url)):
            eventually(lambda: parked(group) == ["unknown_type", "held", "held", "held"], "key behind its second")
            assert effects(group) == ["a1"]
        [(state, head, due)] = group.query("select state, head_id, due_at from onceward.holds")
        assert (state, due) == ("retrying", None)
        assert group.query("select command_id from onceward.parked where reason = 'unknown_type'") == [(head,)]
        with running(old, group, RegistryClient(services.registry_url)):  # nothing changes by a restart
            send(services, group, lane, "b", Increment(counter="b", amount=2))
            eventually(lambda: group.count("select count(*) from effect where what = 'b2'"), "another key")
        assert effects(group) == ["a1"]
        with running(new, group, RegistryClient(services.registry_url)):
            eventually(group.settled, "end")
    assert effects(group) == ["a1", "settle2", "a3", "settle4", "a5"]
    assert group.states() == {"done": 7}


def test_a_head_sent_round_to_a_worker_without_its_handler_goes_on_holding_its_key(
    services: Services, database: str, topic_prefix: str
) -> None:
    name, lane = app_name(topic_prefix), f"{topic_prefix}lane"
    new, old = application(name, lane), application(name, lane, settles=False)
    group = group_of(new, services, database, partitions=1)
    group.query(EFFECT)
    send(services, group, lane, "a", Settle(batch=1), Increment(counter="a", amount=2))
    with Forwarder(database, services.bootstrap) as forwarder:
        with running(old, group, RegistryClient(services.registry_url)):
            eventually(lambda: parked(group) == ["unknown_type", "held"], "parked key")
            with psycopg.connect(database, autocommit=True) as connection:
                assert requeue_resolved(connection, group.worker()._engine) == 1
            eventually(lambda: forwarder.forwarded, "record sent round")
            eventually(lambda: sorted(parked(group)) == ["held", "unknown_type"], "parked again")
            send(services, group, lane, "a", Increment(counter="a", amount=3))
            eventually(lambda: len(parked(group)) == 3, "third command")
        with running(new, group, RegistryClient(services.registry_url)):
            eventually(group.settled, "end")
    assert effects(group) == ["settle1", "a2", "a3"]


def test_a_key_is_let_go_when_its_heads_type_turns_out_to_have_no_order(
    services: Services, database: str, topic_prefix: str
) -> None:
    name, lane = app_name(topic_prefix), f"{topic_prefix}lane"
    new, old = application(name, lane, order="none"), application(name, lane, settles=False)
    group = group_of(new, services, database, partitions=1)
    group.query(EFFECT)
    send(services, group, lane, "a", Settle(batch=1), Increment(counter="a", amount=2))
    with Forwarder(database, services.bootstrap):
        with running(old, group, RegistryClient(services.registry_url)):
            eventually(lambda: parked(group) == ["unknown_type", "held"], "parked key")
        with running(new, group, RegistryClient(services.registry_url)):
            eventually(group.settled, "end")
    assert effects(group) == ["settle1", "a2"]


def test_a_type_without_order_holds_nobody_up_while_its_schema_is_missing(
    services: Services, database: str, topic_prefix: str
) -> None:
    name, lane = app_name(topic_prefix), f"{topic_prefix}lane"
    app = application(name, lane, order="none")
    group = group_of(app, services, database, partitions=1)
    group.query(EFFECT)
    send(services, group, lane, "a", Settle(batch=1), late=True)
    send(services, group, lane, "a", Increment(counter="a", amount=2))
    with running(app, group, RegistryClient(services.registry_url)):
        eventually(lambda: effects(group) == ["a2"], "effect")
    assert parked(group) == ["schema_missing"]
    assert not group.count("select count(*) from onceward.holds")


@pytest.mark.parametrize("mode", ["transactional", "external"])
def test_a_missing_schema_in_the_middle_of_a_key_keeps_its_order(
    services: Services, database: str, topic_prefix: str, mode: str
) -> None:
    name, lane = app_name(topic_prefix), f"{topic_prefix}lane"
    app = external(name, lane, database) if mode == "external" else application(name, lane)
    group = group_of(app, services, database, partitions=1)
    group.query(EFFECT)
    payload = group.codec.encode(Increment(counter="a"))
    send(services, group, lane, "a", Increment(counter="a", amount=1, note="fail_once"))
    send(services, group, lane, "a", Increment(counter="a", amount=2), late=True)
    send(services, group, lane, "a", Increment(counter="a", amount=3), Increment(counter="a", amount=4))
    with Forwarder(database, services.bootstrap):
        with running(app, group, RegistryClient(services.registry_url)):
            eventually(lambda: parked(group) == ["schema_missing", "held", "held"], "parked key")
            assert effects(group) == ["a1"]
        registry = RegisteredLate(services.registry_url)
        registry.like = int.from_bytes(payload[1:5], "big")
        with running(app, group, registry):
            eventually(group.settled, "end")
    assert effects(group) == ["a1", "a2", "a3", "a4"]


def test_an_ignored_type_is_skipped_and_what_was_parked_of_it_lets_its_key_go(
    services: Services, database: str, topic_prefix: str
) -> None:
    name, lane = app_name(topic_prefix), f"{topic_prefix}lane"
    both = application(app_name(topic_prefix), lane)
    old = application(name, lane, settles=False)
    new = application(name, lane, settles=False, ignores=("test.Settle",))
    codec = group_of(both, services, database, partitions=1).codec
    group = replace(group_of(new, services, database, partitions=1), codec=codec)
    group.query(EFFECT)
    send(services, group, lane, "a", Settle(batch=1), Increment(counter="a", amount=2), Settle(batch=3))
    skipped = events.SKIPPED.labels(lane, "ignored_type")
    with Forwarder(database, services.bootstrap):
        with running(old, group, RegistryClient(services.registry_url)):
            eventually(lambda: parked(group) == ["unknown_type", "held", "held"], "parked key")
        with running(new, group, RegistryClient(services.registry_url)):
            eventually(group.settled, "end of what was parked")
            before = skipped._value.get()
            send(services, group, lane, "a", Settle(batch=4), Increment(counter="a", amount=5))
            eventually(lambda: effects(group) == ["a2", "a5"], "effect behind it")
    assert skipped._value.get() == before + 1
    assert group.states() == {"done": 2, "discarded": 2}
    assert group.query("select distinct reason from onceward.ledger where state = 'discarded'") == [("ignored_type",)]


def test_an_operator_gives_up_what_will_never_run(services: Services, database: str, topic_prefix: str) -> None:
    name, lane = app_name(topic_prefix), f"{topic_prefix}lane"
    app = application(name, lane)
    group = group_of(app, services, database, partitions=1)
    group.query(EFFECT)
    send(services, group, lane, "a", Settle(batch=1), late=True)
    send(services, group, lane, "a", Increment(counter="a", amount=2))
    with Forwarder(database, services.bootstrap):
        with running(app, group, RegistryClient(services.registry_url)):
            eventually(lambda: parked(group) == ["schema_missing", "held"], "parked key")
        group.query("update onceward.parked set reason = 'discard' where reason = 'schema_missing'")
        with running(app, group, RegistryClient(services.registry_url)):
            eventually(group.settled, "end")
    assert effects(group) == ["a2"]
    assert group.states() == {"done": 1, "discarded": 1}
