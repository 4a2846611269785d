"""Housekeeping makes ledger weeks ahead, drops old ones, and forgets nothing that may come again."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg import errors

from onceward_consumer.housekeeping import Housekeeping, Kept, keep_house
from onceward_schemas.ids import new_id
from tests.support.consumers import eventually

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("set lock_timeout = '200ms'")
        yield connection


def ago(days: float) -> datetime:
    return datetime.now(UTC) - timedelta(days=days)


def aged(when: datetime) -> uuid.UUID:
    """The id that a command published then would have."""
    return uuid.UUID(int=(int(when.timestamp() * 1000) << 80) | 7 << 76 | 2 << 62 | uuid.uuid4().int >> 68)


def week(connection: Connection, days: float) -> str:
    """A ledger week that began so many days ago."""
    name = f"ledger_old_{uuid.uuid4().hex[:6]}"
    connection.execute(f"create table onceward.{name} (like onceward.ledger including defaults including constraints)")
    connection.execute(
        f"do $$ begin execute format('alter table onceward.ledger attach partition onceward.{name} for values from (%L)"
        f" to (%L)', onceward.uuid_floor('{ago(days)}'), onceward.uuid_floor('{ago(days - 7)}')); end $$"
    )
    return name


def row(connection: Connection, command_id: uuid.UUID, *, state: str = "done", changed: float = 0) -> uuid.UUID:
    """A ledger row that was changed last so many days ago."""
    connection.execute(
        "insert into onceward.ledger (command_id, consumer_group, state, updated_at) values (%s, 'g', %s, %s)",
        (command_id, state, ago(changed)),
    )
    return command_id


def weeks(connection: Connection) -> set[str]:
    found = connection.execute(
        "select inhrelid::regclass::text from pg_inherits where inhparent = 'onceward.ledger'::regclass"
    )
    return {name.removeprefix("onceward.") for (name,) in found.fetchall()}


def remembered(connection: Connection) -> set[uuid.UUID]:
    return {found[0] for found in connection.execute("select command_id from onceward.ledger").fetchall()}


def rounds(connection: Connection) -> Kept:
    total = Kept()
    while True:
        kept = keep_house(connection)
        assert kept is not None
        total = total.plus(kept)
        if not kept.more:
            return total


def test_old_weeks_are_dropped_and_younger_ones_kept(connection: Connection) -> None:
    old, older, young = week(connection, 40), week(connection, 60), week(connection, 33)
    for days in (40, 60, 33):
        row(connection, aged(ago(days - 1)), changed=days - 2)
    before = weeks(connection)
    assert rounds(connection).dropped == 2
    assert before - weeks(connection) == {old, older}
    assert young in weeks(connection)


@pytest.mark.parametrize("state", ["running", "retrying", "parked"])
def test_a_week_with_a_command_on_its_way_is_kept(connection: Connection, state: str) -> None:
    kept, dropped = week(connection, 50), week(connection, 43)
    row(connection, aged(ago(49)), changed=49)
    waiting = row(connection, aged(ago(48)), state=state, changed=48)
    row(connection, aged(ago(42)), changed=42)
    assert rounds(connection).dropped == 1
    assert kept in weeks(connection)
    assert dropped not in weeks(connection)
    connection.execute("update onceward.ledger set state = 'done' where command_id = %s", (waiting,))
    assert rounds(connection).dropped == 1


def test_a_week_in_which_a_delayed_command_ran_lately_is_kept(connection: Connection) -> None:
    kept = week(connection, 100)
    for _ in range(2000):  # pages enough for the index to have something to skip
        row(connection, aged(ago(99)), changed=99)
    late = row(connection, aged(ago(98)), changed=29)
    assert rounds(connection).dropped == 0
    assert kept in weeks(connection)
    assert late in remembered(connection)


def test_the_next_weeks_are_made_and_ids_fall_into_them(connection: Connection) -> None:
    made = [name for name in weeks(connection) if name.startswith("ledger_2")]
    for name in sorted(made)[1:]:
        connection.execute(f"drop table onceward.{name}")
    assert rounds(connection).prepared == len(made) - 1
    assert set(made) <= weeks(connection)
    row(connection, aged(ago(-20)))
    assert connection.execute("select count(*) from onceward.ledger_default").fetchone() == (0,)


def test_a_week_that_began_in_the_default_partition_stays_there(connection: Connection) -> None:
    last = max(name for name in weeks(connection) if name.startswith("ledger_2"))
    [(bound,)] = connection.execute(
        "select (regexp_match(pg_get_expr(relpartbound, oid), 'FROM \\(''([0-9a-f-]+)'))[1] from pg_class where relname = %s",
        (last,),
    ).fetchall()
    connection.execute(f"drop table onceward.{last}")
    there = row(connection, uuid.UUID(bound))
    assert rounds(connection).prepared == 0
    assert there in remembered(connection)


def test_what_lies_outside_the_weeks_is_forgotten_by_its_last_change(connection: Connection) -> None:
    gone = {row(connection, uuid.uuid4(), changed=31), row(connection, aged(ago(400)), state="dead", changed=31)}
    kept = {
        row(connection, uuid.uuid4(), changed=29),
        row(connection, uuid.uuid4(), state="retrying", changed=90),
        row(connection, aged(ago(400)), changed=29),
        row(connection, aged(ago(-400)), changed=31),  # its age says for another year that it is new
    }
    assert gone <= remembered(connection)
    assert rounds(connection).ledger_rows == 2
    assert remembered(connection) == kept


def test_attempts_are_forgotten_with_their_commands(connection: Connection) -> None:
    final, waiting, letter, young = (new_id() for _ in range(4))
    row(connection, waiting, state="retrying")
    for command_id, days in ((final, 31), (waiting, 31), (letter, 31), (young, 29)):
        connection.execute(
            "insert into onceward.attempts (command_id, consumer_group, attempt, outcome, reason, worker, at)"
            " values (%s, 'g', 1, 'failed', 'why', 'w', %s)",
            (command_id, ago(days)),
        )
    connection.execute(
        "insert into onceward.dead_letters (consumer_group, command_id, lane, reason, attempts, topic, partition, "
        " \"offset\", timestamp_ms, headers, worker) values ('g', %s, 'l', 'r', 1, 't', 0, 0, 0, '[]', 'w')",
        (letter,),
    )
    assert rounds(connection).attempts == 1
    left = {found[0] for found in connection.execute("select command_id from onceward.attempts").fetchall()}
    assert left == {waiting, letter, young}
    connection.execute("update onceward.dead_letters set state = 'discarded'")
    assert rounds(connection).attempts == 1


def test_workers_that_died_long_ago_are_forgotten(connection: Connection) -> None:
    dead, holding, recent = (uuid.uuid4() for _ in range(3))
    for incarnation, days in ((dead, 2), (holding, 2), (recent, 0.5)):
        connection.execute(
            "insert into onceward.workers (incarnation, consumer_group, host, pid, lease_until) values (%s, 'g', 'h', 1, %s)",
            (incarnation, ago(days)),
        )
    connection.execute(
        "insert into onceward.holds (consumer_group, lane, key, state, head_id, incarnation)"
        " values ('g', 'l', 'k', 'draining', %s, %s)",
        (new_id(), holding),
    )
    assert rounds(connection).workers == 1
    left = connection.execute("select incarnation from onceward.workers").fetchall()
    assert {found[0] for found in left} == {holding, recent}


def test_two_at_once_drop_each_week_once(connection: Connection, database: str) -> None:
    for days in (40, 50, 60, 70):
        week(connection, days)
    dropped = []

    def keep() -> None:
        with psycopg.connect(database, autocommit=True) as mine:
            mine.execute("set lock_timeout = '5s'")
            while (kept := keep_house(mine)) is None or kept.more:
                dropped.append(kept.dropped if kept else 0)

    threads = [threading.Thread(target=keep) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(dropped) == 4
    assert not [name for name in weeks(connection) if name.startswith("ledger_old")]


def test_while_one_is_at_it_another_does_nothing(connection: Connection, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as other:
        other.execute("select pg_advisory_lock(hashtext('onceward.housekeeping'))")
        assert keep_house(connection) is None
    eventually(lambda: keep_house(connection), "free lock")


def test_a_transaction_on_the_ledger_delays_the_drop_and_not_the_workers(connection: Connection, database: str) -> None:
    old = week(connection, 60)
    with psycopg.connect(database) as worker:
        row(worker, new_id())
        with pytest.raises(errors.LockNotAvailable):
            keep_house(connection)
        assert old in weeks(connection)
        row(worker, new_id())
    assert rounds(connection).dropped == 1


def test_a_command_claimed_between_the_looks_keeps_its_week(connection: Connection, database: str) -> None:
    connection.execute("set lock_timeout = '20s'")
    old = week(connection, 60)
    row(connection, aged(ago(59)), changed=59)
    results: list[Kept | None] = []
    with psycopg.connect(database) as worker:
        late = row(worker, aged(ago(58)))
        keeper = threading.Thread(target=lambda: results.append(keep_house(connection)))
        keeper.start()
        with psycopg.connect(database, autocommit=True) as watcher:
            waiting = "select count(*) from pg_locks where not granted and mode = 'AccessExclusiveLock' and database ="
            waiting += " (select oid from pg_database where datname = current_database())"
            eventually(lambda: watcher.execute(waiting).fetchone() == (1,), "waiting keeper")
    keeper.join()
    assert results[0] is not None
    assert results[0].dropped == 0
    assert old in weeks(connection)
    assert late in remembered(connection)


def test_the_service_does_a_round_and_ends(connection: Connection, database: str) -> None:
    old = week(connection, 60)
    service = Housekeeping(database, first=timedelta(0))
    service.start()
    try:
        eventually(lambda: old not in weeks(connection), "dropped week")
        assert service.alive()
    finally:
        service.stop()


def test_business_keys_are_forgotten_after_the_retention(connection: Connection) -> None:
    for key, days in (("old", 31), ("young", 29)):
        connection.execute("insert into onceward.effects values ('g', %s, gen_random_uuid(), %s)", (key, ago(days)))
    assert rounds(connection).effects == 1
    assert connection.execute("select key from onceward.effects").fetchall() == [("young",)]
