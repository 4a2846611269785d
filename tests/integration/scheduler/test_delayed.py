"""Delayed commands reach the outbox when they are due: none early, each once, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onceward_producer.outbox import Outbox
from onceward_scheduler.delayed import DelayedMover, move_due
from tests.support.report_command import JsonEncoder, MakeReport, decoded

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("set lock_timeout = '2s'")
        yield connection


def publish(connection: Connection, name: str, delay: timedelta) -> None:
    [(now,)] = connection.execute("select clock_timestamp()").fetchall()
    with connection.transaction():
        Outbox(JsonEncoder()).publish(connection, MakeReport(report=name), not_before=now + delay)


def overdue(connection: Connection, seconds: float = 60) -> None:
    connection.execute("update onceward.delayed set not_before = not_before - %s", [timedelta(seconds=seconds)])


def outbox(connection: Connection) -> list[str]:
    return [decoded(row[0])["report"] for row in connection.execute("select payload from onceward.outbox order by seq")]


def test_due_commands_move_in_the_order_of_their_times(connection: Connection) -> None:
    for name, seconds in (("c", 3), ("a", 1), ("b", 2), ("later", 3600)):
        publish(connection, name, timedelta(seconds=seconds))
    overdue(connection)
    assert move_due(connection) == 3
    assert outbox(connection) == ["a", "b", "c"]
    assert connection.execute("select count(*) from onceward.delayed").fetchall() == [(1,)]


def test_those_of_one_instant_move_in_the_order_of_publishing(connection: Connection) -> None:
    [(now,)] = connection.execute("select clock_timestamp()").fetchall()
    names = [f"{n:03}" for n in range(200)]
    with connection.transaction():
        Outbox(JsonEncoder()).publish_many(
            connection, [MakeReport(report=name) for name in names], not_before=now + timedelta(seconds=5)
        )
    overdue(connection)
    while move_due(connection, limit=30):
        pass
    assert outbox(connection) == names


def test_none_moves_early_and_none_much_too_late(connection: Connection, database: str) -> None:
    movers = [DelayedMover(database) for _ in range(2)]
    for mover in movers:
        mover.start()
    for n in range(20):
        publish(connection, f"{n:02}", timedelta(milliseconds=600 + 70 * n))
    due = [row[0] for row in connection.execute("select not_before from onceward.delayed order by 1")]
    deadline = time.monotonic() + 10
    while len(outbox(connection)) < 20 and time.monotonic() < deadline:
        time.sleep(0.02)
    for mover in movers:
        assert mover.alive()
        assert mover.ready()
        mover.stop()
    assert outbox(connection) == [f"{n:02}" for n in range(20)]
    moved = [row[0] for row in connection.execute("select created_at from onceward.outbox order by seq")]
    late = [there - wanted for there, wanted in zip(moved, due, strict=True)]
    assert min(late) > timedelta(milliseconds=-50)  # created_at is the start of the transaction, just before the look
    assert max(late) < timedelta(seconds=0.5)


def test_two_movers_at_once_move_each_command_once_and_in_order(connection: Connection, database: str) -> None:
    [(now,)] = connection.execute("select clock_timestamp()").fetchall()
    names = [f"{n:04}" for n in range(2000)]
    with connection.transaction():
        Outbox(JsonEncoder()).publish_many(
            connection, [MakeReport(report=name) for name in names], not_before=now + timedelta(seconds=5)
        )
    overdue(connection)

    def move() -> None:
        with psycopg.connect(database, autocommit=True) as mine:
            while mine.execute("select from onceward.delayed limit 1").fetchall():
                move_due(mine, limit=25)

    threads = [threading.Thread(target=move) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outbox(connection) == names


def test_a_command_that_is_being_taken_back_holds_up_the_others_for_a_moment_only(
    connection: Connection, database: str
) -> None:
    for name in "ab":
        publish(connection, name, timedelta(seconds=1))
    overdue(connection)
    connection.execute("set lock_timeout = '200ms'")
    with psycopg.connect(database) as other:
        other.execute("delete from onceward.delayed where seq = (select min(seq) from onceward.delayed)")
        assert move_due(connection) == 1
        assert outbox(connection) == ["b"]
        other.rollback()
    assert move_due(connection) == 1
    assert outbox(connection) == ["b", "a"]


def test_while_one_mover_is_at_it_another_keeps_away(connection: Connection, database: str) -> None:
    for name, seconds in (("a", 1), ("b", 2)):
        publish(connection, name, timedelta(seconds=seconds))
    overdue(connection)
    with psycopg.connect(database, autocommit=True) as other:
        with other.transaction():
            assert move_due(other, limit=1) == 1
            assert move_due(connection) is None
            assert outbox(connection) == []
        assert move_due(connection) == 1
    assert outbox(connection) == ["a", "b"]
