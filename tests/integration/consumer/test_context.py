"""What handlers are given: the transaction and its results, follow-ups with their options, run items, and when they end."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from onceward_consumer.app import App
from onceward_consumer.context import AsyncContext, Context
from onceward_consumer.dead_letter_decisions import replay
from onceward_consumer.dead_letters import Identity
from onceward_consumer.failures import Reject
from onceward_consumer.policy import fixed
from onceward_producer.outbox import Outbox
from onceward_scheduler.delayed import move_due
from onceward_schemas.errors import AppError
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

TABLE = "create table effect (seq bigint generated always as identity, counter text, amount int)"
INSERT = "insert into effect (counter, amount) values (%s, %s)"


def test_a_result_is_there_when_it_is_looked_at(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))
    seen: list[tuple[int, Any]] = []

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Context) -> None:
        inserted = ctx.connection.execute(INSERT + " returning amount", (command.counter, command.amount))
        changed = ctx.connection.execute("update effect set amount = amount where amount = %s", (command.amount,))
        with ctx.connection.transaction(), ctx.connection.cursor() as cursor:
            cursor.executemany(INSERT, [(command.counter, -1), (command.counter, -2)])
        seen.append((changed.rowcount, inserted.fetchone()))

    group = group_of(app, services, database)
    group.query(TABLE)
    group.publish(Increment(counter="a", amount=n) for n in range(50))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 50}, "end")
    assert seen[-50:] == [(1, (n,)) for n in range(50)]
    assert group.count("select count(*) from effect") == 150


def test_an_asynchronous_handler_gets_its_results_too(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", retry=fixed("300ms", attempts=2))
    async def increment(command: Increment, ctx: AsyncContext) -> None:
        row = await (await ctx.connection.execute("select %s::int", (command.amount,))).fetchone()
        assert row == (command.amount,)
        if (await ctx.connection.execute(INSERT, (command.counter, command.amount))).rowcount != 1:
            raise Reject("rowcount")
        if command.amount == 7:
            await ctx.connection.rollback()

    group = group_of(app, services, database)
    group.query(TABLE)
    group.publish(Increment(counter=f"c{n % 3}", amount=n) for n in range(50))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 49, "dead": 1} and group.settled(), "end")
    assert group.count("select count(*) from effect") == 49
    assert group.query("select reason from onceward.dead_letters") == [("transaction_misuse",)]


def test_follow_ups_inherit_and_take_options(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))
    later = datetime.now(UTC) + timedelta(hours=1)
    run_id = uuid.uuid4()

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Context) -> None:
        ctx.publish(Settle(batch=1), dedupe_key="once")
        ctx.publish(Settle(batch=2), not_before=later)
        ctx.publish(Settle(batch=3), tenant="other")

    @app.handler(Settle, lane=f"{topic_prefix}settle")
    def settle(command: Settle, ctx: Context) -> None:
        pass

    group = group_of(app, services, database)
    group.relane()
    ids = group.publish((Increment(counter="a") for _ in range(2)), tenant="acme", run_id=run_id)
    with group.running(), Forwarder(database, services.bootstrap) as forwarder:
        eventually(lambda: group.states() == {"done": 5}, "both commands and three follow-ups")
        assert len(forwarder.forwarded) == 5
    assert group.count("select count(*) from onceward.dedupe") == 1
    delayed = group.query("select tenant, run_id, context::json ->> 'causation_id' from onceward.delayed order by seq")
    assert delayed == [("acme", run_id, str(ids[0])), ("acme", run_id, str(ids[1]))]


def test_items_of_a_run_are_counted_with_the_effect(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))
    refused: list[str] = []

    @app.handler(Increment, lane=f"{topic_prefix}counter", item_stage="notified")
    def increment(command: Increment, ctx: Context) -> None:
        if ctx.run_id is None:
            try:
                ctx.items_done("changed", ["x"])
            except AppError as error:
                refused.append(str(error))
            return
        ctx.items_done("changed", ["e1", "e2"])
        ctx.items_failed("changed", {"e3": "unknown_employee"})
        if command.amount == 1:
            raise Reject("no_mailbox")

    group = group_of(app, services, database)
    run_id = uuid.uuid4()
    group.query("insert into onceward.runs (id, kind, state) values (%s, 'test', 'running')", run_id)
    group.publish([Increment(counter="a", amount=0)], run_id=run_id, item="e9")
    group.publish([Increment(counter="a", amount=1)], run_id=run_id, item="e8")
    group.publish([Increment(counter="a", amount=2)])
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 2, "dead": 1}, "end")
    items = group.query("select stage, item, state, reason from onceward.run_items order by stage, item")
    assert items == [
        ("changed", "e1", "done", None),
        ("changed", "e2", "done", None),
        ("changed", "e3", "failed", "unknown_employee"),
        ("notified", "e8", "failed", "no_mailbox"),
        ("notified", "e9", "done", None),
    ]
    assert "run_id" in refused[0]


def test_a_command_that_stands_for_many_items_counts_them_all(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(
        Increment,
        lane=f"{topic_prefix}counter",
        item_stage="changed",
        items=lambda command: [f"{command.counter}{n}" for n in range(10 // command.amount)],
    )
    def increment(command: Increment, ctx: Context) -> None:
        if command.amount == 5:
            raise Reject("no_budget")

    group = group_of(app, services, database)
    run_id = uuid.uuid4()
    group.query("insert into onceward.runs (id, kind, state) values (%s, 'test', 'running')", run_id)
    commands = [
        Increment(counter="good", amount=4),
        Increment(counter="bad", amount=5),
        Increment(counter="x", amount=0),
    ]
    group.publish(commands, run_id=run_id)
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 1, "dead": 2}, "end")
    items = group.query("select item, state, reason from onceward.run_items order by item")
    assert items == [
        ("bad0", "failed", "no_budget"),
        ("bad1", "failed", "no_budget"),
        ("good0", "done", None),
        ("good1", "done", None),
    ]
    reasons = group.query("select reason from onceward.dead_letters order by reason")
    assert reasons == [("bad_items",), ("no_budget",)]


def aged(when: datetime) -> uuid.UUID:
    """The id that a command published then would have."""
    return uuid.UUID(int=(int(when.timestamp() * 1000) << 80) | 7 << 76 | 2 << 62 | 5)


def test_a_command_older_than_the_ledger_is_not_run_until_an_operator_says_so(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Context) -> None:
        ctx.connection.execute(INSERT, (command.counter, command.amount))

    group = group_of(app, services, database)
    group.query(TABLE)
    group.publish([Increment(counter="key", amount=1)])
    old = aged(datetime(2020, 1, 1, tzinfo=UTC))
    group.query("update onceward.outbox set id = %s", old)
    group.publish([Increment(counter="key", amount=2)])
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 1, "dead": 1} and group.settled(), "end")
        assert group.query("select amount from effect") == [(2,)]
        assert group.query("select command_id, reason, attempts from onceward.dead_letters") == [
            (old, "beyond_ledger", 1)
        ]
        with psycopg.connect(database) as connection:
            replay(connection, [Identity(app.name, old)], by="test", because="it never ran")
        eventually(lambda: group.states() == {"done": 2} and group.settled(), "replay")
    assert group.query("select amount from effect order by amount") == [(1,), (2,)]
    assert group.query("select state from onceward.dead_letters") == [("resolved",)]


def test_an_old_command_that_nobody_can_run_is_not_kept_to_be_run_later(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Context) -> None:
        raise AssertionError

    group = group_of(app, services, database)
    group.publish([Increment(counter="key")])
    group.query("update onceward.outbox set id = %s, type = 'test.Gone'", aged(datetime(2020, 1, 1, tzinfo=UTC)))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"dead": 1} and group.settled(), "end")
    assert group.query("select reason, type from onceward.dead_letters") == [("beyond_ledger", "test.Gone")]


def test_a_command_delayed_for_longer_than_the_ledger_reaches_runs_once(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Context) -> None:
        ctx.connection.execute(INSERT, (command.counter, command.amount))

    group = group_of(app, services, database)
    group.query(TABLE)
    group.relane()
    now = datetime.now(UTC)
    old = aged(now - timedelta(days=100))
    with psycopg.connect(database, autocommit=True) as connection:
        with connection.transaction():
            Outbox(group.codec).publish(connection, Increment(counter="late"), not_before=now + timedelta(seconds=1))
        connection.execute("update onceward.delayed set id = %s", (old,))
        eventually(lambda: move_due(connection), "due command")
        connection.execute(
            "insert into onceward.outbox (id, aggregatetype, aggregateid, type, payload, topic, context)"
            " select id, aggregatetype, aggregateid, type, payload, topic, context from onceward.outbox"
        )
    with Forwarder(database, services.bootstrap) as forwarder, group.running():
        eventually(lambda: group.states() == {"done": 1} and group.settled(), "end")
        group.publish([Increment(counter="behind")])
        eventually(lambda: group.states() == {"done": 2}, "what came after the second record")
    assert [record[1] for record in forwarder.forwarded][:2] == [old, old]
    assert sorted(group.query("select counter from effect")) == [("behind",), ("late",)]


def test_commands_without_a_key_wait_for_nobody(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Settle, lane=f"{topic_prefix}settle", retry=fixed("300ms", attempts=3))
    def settle(command: Settle, ctx: Context) -> None:
        if command.batch == 0 and ctx.attempt == 1:
            raise TimeoutError
        ctx.connection.execute(INSERT, ("none", command.batch))

    group = group_of(app, services, database, partitions=1)
    group.query(TABLE)
    group.publish(Settle(batch=n) for n in range(20))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 20} and group.settled(), "end")
    assert group.query("select amount from effect order by seq desc limit 1") == [(0,)]
    assert not group.count("select count(*) from onceward.attempts where outcome <> 'failed'")
