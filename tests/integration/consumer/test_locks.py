"""A row that somebody else has locked holds up the commands of its key, and nobody else; it costs no attempts."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import psycopg
import pytest

from onceward_consumer.app import App
from onceward_consumer.policy import fixed
from onceward_schemas.errors import BrokerError, DatabaseError
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

UPDATE = "update counters set n = n + 1 where name = %s returning n"


def build(services: Services, dsn: str, prefix: str) -> Group:
    app = App(app_name(prefix))

    @app.handler(Increment, lane=f"{prefix}counter", retry=fixed("300ms", attempts=3))
    def increment(command: Increment, ctx: Any) -> None:
        ctx.connection.execute("update counters set n = n + %s where name = %s", (command.amount, command.counter))

    group = group_of(app, services, dsn)
    group.query("create table counters (name text primary key, n int not null)")
    group.query("insert into counters select 'c' || n, 0 from generate_series(0, 19) n")
    return group


def test_an_uncommitted_ledger_row_blocks_its_key_only(services: Services, database: str, topic_prefix: str) -> None:
    group = build(services, database, topic_prefix)
    ids = group.publish(Increment(counter=f"c{n % 20}") for n in range(100))
    with psycopg.connect(database) as zombie:
        zombie.execute(
            "insert into onceward.ledger (command_id, consumer_group) values (%s, %s)", (ids[3], group.app.name)
        )
        with Forwarder(database, services.bootstrap), group.running():
            others = "select count(*) from onceward.ledger where state = 'done'"
            eventually(lambda: group.count(others) == 95, "effects of the other keys", 10)
            zombie.rollback()
            eventually(lambda: group.count(others) == 100, "effects of the blocked key", 10)
    assert group.query("select distinct n from counters") == [(5,)]
    assert not group.count("select count(*) from onceward.attempts")


def test_a_locked_row_of_the_effect_blocks_its_key_only(services: Services, database: str, topic_prefix: str) -> None:
    group = build(services, database, topic_prefix)
    group.publish(Increment(counter=f"c{n % 20}") for n in range(100))
    with psycopg.connect(database) as other:
        other.execute("select from counters where name = 'c3' for update")
        with Forwarder(database, services.bootstrap), group.running():
            others = "select count(*) from onceward.ledger where state = 'done'"
            eventually(lambda: group.count(others) == 95, "effects of the other keys", 15)
            other.rollback()
            eventually(lambda: group.count(others) == 100, "effects of the blocked key", 10)
    assert group.query("select distinct n from counters") == [(5,)]
    assert not group.count("select count(*) from onceward.attempts")


def test_commands_that_deadlock_both_take_effect(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))
    meeting = threading.Barrier(2)

    @app.handler(Increment, lane=f"{topic_prefix}counter", retry=fixed("300ms", attempts=1))
    def increment(command: Increment, ctx: Any) -> None:
        names = ("a", "b") if command.counter == "one" else ("b", "a")
        ctx.connection.execute(UPDATE, (names[0],)).fetchone()
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(3)  # both hold their first row now; whoever comes again does not wait
        meeting.abort()
        ctx.connection.execute(UPDATE, (names[1],)).fetchone()

    group = group_of(app, services, database)
    group.query("create table counters (name text primary key, n int not null)")
    group.query("insert into counters values ('a', 0), ('b', 0)")
    group.publish([Increment(counter="one"), Increment(counter="two")])
    with Forwarder(database, services.bootstrap), group.running(group_size=1):
        eventually(lambda: group.states() == {"done": 2}, "both", 30)
    assert group.query("select n from counters") == [(2,), (2,)]
    assert not group.count("select count(*) from onceward.attempts")


def test_a_worker_refuses_to_start_without_its_topics(services: Services, database: str, topic_prefix: str) -> None:
    group = build(services, database, topic_prefix)
    other = App(app_name(topic_prefix))

    @other.handler(Increment, lane=f"{topic_prefix}missing")
    def increment(command: Increment, ctx: Any) -> None:
        pass

    with pytest.raises(BrokerError, match="onceward topics apply"):
        Group(other, group.settings, group.codec).worker().start()


def test_a_worker_refuses_to_start_without_its_tables(services: Services, database: str, topic_prefix: str) -> None:
    group = build(services, database, topic_prefix)
    group.query("drop schema onceward cascade")
    with pytest.raises(DatabaseError, match="onceward db apply"):
        group.worker().start()
