"""The transaction of ticks: fenced, unique, and whole."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import errors

from onceward_consumer.app import App
from onceward_scheduler.definitions import Definition, definitions, redeclare, register
from onceward_scheduler.emission import Emitted, emit, emit_all, read_due, seconds_until_due, take_epoch
from onceward_scheduler.history import forget
from onceward_scheduler.planning import DueSchedule, Planned, plan
from onceward_scheduler.ticks import Tick
from onceward_schemas.command import Command
from tests.support.report_command import JsonEncoder, MakeReport

Connection = psycopg.Connection[Any]
PARTITIONS = 1


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def report(tick: Tick) -> Command:
    return MakeReport(report=tick.schedule_id, date=tick.scheduled_at.isoformat())


def app_with(*ids: str, rule: str = "every 1s", function: Any = report) -> dict[str, Definition]:
    app = App("hr")
    for one in ids:
        app.schedule(rule, id=one)(function)
    return dict(definitions(app))


def registered(connection: Connection, declared: dict[str, Definition], late: timedelta | None = None) -> None:
    register(connection, "hr", declared, PARTITIONS)
    if late is not None:
        connection.execute(
            "update onceward.schedules set next_at = date_trunc('second', clock_timestamp() - %(late)s),"
            " due_at = date_trunc('second', clock_timestamp() - %(late)s)",
            {"late": late},
        )


def due(connection: Connection, declared: dict[str, Definition], epochs: dict[int, int]) -> list[Planned]:
    found = read_due(connection, "hr", epochs, list(declared), 100)
    return [plan("hr", declared[one.id], one, JsonEncoder()) for one in found]


def emitted(connection: Connection) -> list[tuple[str, datetime, list[UUID]]]:
    return connection.execute(
        "select schedule_id, scheduled_at, command_ids from onceward.ticks where outcome = 'emitted' order by 2, 1"
    ).fetchall()


def outbox(connection: Connection) -> list[UUID]:
    return [row[0] for row in connection.execute("select id from onceward.outbox order by seq")]


def test_ticks_commands_and_next_ticks_are_written_together(connection: Connection) -> None:
    declared = app_with("a", "b")
    registered(connection, declared, late=timedelta(seconds=3))
    epochs = {0: take_epoch(connection, "hr", 0, uuid4())}
    planned = due(connection, declared, epochs)
    assert len(planned) == 2
    emit(connection, "hr", epochs, planned)
    ticks = emitted(connection)
    assert len(ticks) >= 6
    assert [command_id for _, _, ids in ticks for command_id in ids] == outbox(connection)
    rows = connection.execute("select last_at, next_at, due_at, failures from onceward.schedules").fetchall()
    last = max(scheduled_at for _, scheduled_at, _ in ticks)
    assert rows == [(last, last + timedelta(seconds=1), last + timedelta(seconds=1), 0)] * 2


def test_a_former_leaders_transaction_is_refused(connection: Connection) -> None:
    declared = app_with("a")
    registered(connection, declared, late=timedelta(seconds=3))
    epochs = {0: take_epoch(connection, "hr", 0, uuid4())}
    planned = due(connection, declared, epochs)
    take_epoch(connection, "hr", 0, uuid4())
    assert emit(connection, "hr", epochs, planned) == Emitted([], fenced=[0])
    assert (emitted(connection), outbox(connection)) == ([], [])


def test_a_partition_that_was_never_led_is_refused(connection: Connection) -> None:
    declared = app_with("a")
    registered(connection, declared, late=timedelta(seconds=3))
    planned = due(connection, declared, {0: 1})
    assert emit(connection, "hr", {0: 1}, planned).fenced == [0]
    assert outbox(connection) == []


def test_a_successor_waits_for_the_transaction_under_way_and_finds_its_ticks(database: str) -> None:
    declared = app_with("a")
    with (
        psycopg.connect(database, autocommit=True) as old,
        psycopg.connect(database, autocommit=True) as new,
    ):
        registered(old, declared, late=timedelta(seconds=3))
        epochs = {0: take_epoch(old, "hr", 0, uuid4())}
        planned = due(old, declared, epochs)
        taken = threading.Event()

        def succeed() -> None:
            take_epoch(new, "hr", 0, uuid4())
            taken.set()

        with old.transaction():
            emit(old, "hr", epochs, planned)
            thread = threading.Thread(target=succeed)
            thread.start()
            assert not taken.wait(0.3)
        thread.join(5)
        assert taken.is_set()
        assert len(due(new, declared, {0: 2})[0:]) <= 1  # at most the second that has passed since
        assert len(emitted(new)) == len(planned[0].ticks)


def test_a_tick_decided_before_is_not_published_again(connection: Connection) -> None:
    declared = app_with("a")
    registered(connection, declared, late=timedelta(seconds=3))
    epochs = {0: take_epoch(connection, "hr", 0, uuid4())}
    planned = due(connection, declared, epochs)
    emit(connection, "hr", epochs, planned)
    before = (emitted(connection), outbox(connection))
    connection.execute("update onceward.schedules set next_at = %s", [planned[0].schedule.next_at])
    assert emit(connection, "hr", epochs, planned).ticks == []
    assert (emitted(connection), outbox(connection)) == before


@pytest.mark.parametrize(
    "change", ["paused_because = 'x'", "undeclared_at = now()", "next_at = next_at + interval '1s'"]
)
def test_a_schedule_that_was_changed_meanwhile_is_not_emitted(connection: Connection, change: str) -> None:
    declared = app_with("a")
    registered(connection, declared, late=timedelta(seconds=3))
    epochs = {0: take_epoch(connection, "hr", 0, uuid4())}
    planned = due(connection, declared, epochs)
    connection.execute(f"update onceward.schedules set {change}")
    assert emit(connection, "hr", epochs, planned).ticks == []
    assert outbox(connection) == []


def test_a_failing_schedule_waits_and_does_not_stop_the_others(connection: Connection) -> None:
    def failing(tick: Tick) -> Command:
        if tick.schedule_id == "bad":
            raise ValueError("no data")
        return report(tick)

    declared = app_with("bad", "good", function=failing)
    registered(connection, declared, late=timedelta(seconds=3))
    epochs = {0: take_epoch(connection, "hr", 0, uuid4())}
    emit_all(connection, "hr", epochs, due(connection, declared, epochs))
    assert {schedule for schedule, _, _ in emitted(connection)} == {"good"}
    failed = connection.execute(
        "select scheduled_at, reason from onceward.ticks where schedule_id = 'bad' and outcome = 'failed'"
    ).fetchall()
    [(next_at, wait, failures)] = connection.execute(
        "select next_at, due_at - clock_timestamp(), failures from onceward.schedules where id = 'bad'"
    ).fetchall()
    assert failed == [(next_at, "ValueError: no data")]
    assert timedelta(seconds=0.5) < wait <= timedelta(seconds=1)
    assert failures == 1
    assert read_due(connection, "hr", epochs, ["bad"], 10) == []


def test_a_failed_tick_is_emitted_once_it_can_be(connection: Connection) -> None:
    broken = app_with("a", function=lambda tick: 1 / 0)
    mended = app_with("a")
    registered(connection, broken, late=timedelta(seconds=2))
    epochs = {0: take_epoch(connection, "hr", 0, uuid4())}
    emit_all(connection, "hr", epochs, due(connection, broken, epochs))
    connection.execute("update onceward.schedules set due_at = clock_timestamp()")
    emit_all(connection, "hr", epochs, due(connection, mended, epochs))
    found = connection.execute("select outcome, reason from onceward.ticks").fetchall()
    assert set(found) == {("emitted", None)}
    assert len(outbox(connection)) == len(found) >= 2
    assert connection.execute("select failures from onceward.schedules").fetchall() == [(0,)]


def test_rows_that_the_database_refuses_fail_their_own_schedule_only(connection: Connection) -> None:
    connection.execute("alter table onceward.outbox add check (aggregateid <> 'bad')")
    declared = app_with("bad", "good")
    registered(connection, declared, late=timedelta(seconds=2))
    epochs = {0: take_epoch(connection, "hr", 0, uuid4())}
    emit_all(connection, "hr", epochs, due(connection, declared, epochs))
    assert {schedule for schedule, _, _ in emitted(connection)} == {"good"}
    [(outcome, reason)] = connection.execute(
        "select outcome, reason from onceward.ticks where schedule_id = 'bad'"
    ).fetchall()
    assert (outcome, reason.split(":")[0]) == ("failed", "CheckViolation")


def test_a_server_error_that_is_not_about_rows_is_not_taken_for_one(connection: Connection, database: str) -> None:
    declared = app_with("a")
    registered(connection, declared, late=timedelta(seconds=2))
    epochs = {0: take_epoch(connection, "hr", 0, uuid4())}
    planned = due(connection, declared, epochs)
    with psycopg.connect(database) as other:
        other.execute("lock table onceward.ticks in access exclusive mode")
        connection.execute("set lock_timeout = '100ms'")
        with pytest.raises(errors.LockNotAvailable):
            emit_all(connection, "hr", epochs, planned)
    assert connection.execute("select count(*) from onceward.ticks").fetchall() == [(0,)]


def test_a_function_that_returns_nothing_leaves_a_skipped_tick(connection: Connection) -> None:
    declared = app_with("a", function=lambda tick: None)
    registered(connection, declared, late=timedelta(seconds=2))
    epochs = {0: take_epoch(connection, "hr", 0, uuid4())}
    emit_all(connection, "hr", epochs, due(connection, declared, epochs))
    assert connection.execute("select distinct outcome, reason from onceward.ticks").fetchall() == [
        ("skipped", "function_returned_nothing")
    ]
    assert outbox(connection) == []


def test_a_database_in_another_zone_changes_nothing(connection: Connection) -> None:
    connection.execute("set timezone = 'Europe/Berlin'")
    declared = app_with("a", rule="0 0 25 10 *")
    registered(connection, declared)
    overlap = datetime(2025, 10, 25, tzinfo=UTC)
    connection.execute("update onceward.schedules set next_at = %(at)s, due_at = %(at)s", {"at": overlap})
    epochs = {0: take_epoch(connection, "hr", 0, uuid4())}
    schedule = DueSchedule(
        "a", 0, datetime(2026, 10, 25, 1, tzinfo=UTC), None, 0, datetime(2026, 10, 25, 2, tzinfo=UTC)
    )
    connection.execute("update onceward.schedules set next_at = %s", [schedule.next_at])
    planned = plan("hr", declared["a"], schedule, JsonEncoder())
    assert len(emit(connection, "hr", epochs, [planned]).ticks) == 1
    assert [each.next_at.tzinfo for each in read_due(connection, "hr", epochs, ["a"], 1)] in ([], [UTC])


def test_new_schedules_start_from_now_and_known_ones_go_on(connection: Connection) -> None:
    registered(connection, app_with("a", rule="every 1h"))
    connection.execute("update onceward.schedules set next_at = next_at - interval '3 hours'")
    [kept] = connection.execute("select next_at from onceward.schedules").fetchall()
    register(connection, "hr", app_with("a", "b", rule="every 1h"), PARTITIONS)
    found = dict(connection.execute("select id, next_at from onceward.schedules").fetchall())
    assert found["a"] == kept[0]
    assert timedelta(0) < found["b"] - datetime.now(UTC) <= timedelta(hours=1)
    assert seconds_until_due(connection, "hr", {0: 1}, ["b"]) == pytest.approx(
        (found["b"] - datetime.now(UTC)).total_seconds(), abs=5
    )


def test_a_changed_rule_keeps_the_tick_that_is_due_and_plans_anew_otherwise(connection: Connection) -> None:
    registered(connection, app_with("a", "b", rule="every 1h"))
    connection.execute("update onceward.schedules set next_at = next_at - interval '3 hours' where id = 'a'")
    [(kept,)] = connection.execute("select next_at from onceward.schedules where id = 'a'").fetchall()
    register(connection, "hr", app_with("a", "b", rule="every 7s"), PARTITIONS)
    found = dict(connection.execute("select id, next_at from onceward.schedules").fetchall())
    assert found["a"] == kept
    assert found["b"] - datetime.now(UTC) <= timedelta(seconds=7)


def test_a_schedule_no_longer_declared_is_kept_but_not_emitted(connection: Connection) -> None:
    both, one = app_with("a", "b"), app_with("a")
    registered(connection, both, late=timedelta(seconds=2))
    assert register(connection, "hr", one, PARTITIONS) == ["b"]
    assert register(connection, "hr", one, PARTITIONS) == []
    assert [found.id for found in read_due(connection, "hr", {0: 1}, ["a", "b"], 10)] == ["a"]
    redeclare(connection, "hr", both)
    assert {found.id for found in read_due(connection, "hr", {0: 1}, ["a", "b"], 10)} == {"a", "b"}


def test_a_schedule_declared_again_after_long_starts_from_now(connection: Connection) -> None:
    registered(connection, app_with("a"), late=timedelta(days=3))
    register(connection, "hr", app_with("b"), PARTITIONS)
    connection.execute("update onceward.schedules set undeclared_at = now() - interval '1 day' where id = 'a'")
    register(connection, "hr", app_with("a", "b"), PARTITIONS)
    [(behind,)] = connection.execute("select next_at - now() from onceward.schedules where id = 'a'").fetchall()
    assert behind > timedelta(seconds=-1)


def test_several_processes_may_register_at_once(database: str) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with psycopg.connect(database, autocommit=True) as mine:
                register(mine, "hr", app_with(*"abcdef"), PARTITIONS)
        except psycopg.Error as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    with psycopg.connect(database) as connection:
        assert connection.execute("select count(*) from onceward.schedules").fetchall() == [(6,)]


def test_old_ticks_are_forgotten_except_those_that_failed(connection: Connection) -> None:
    now = datetime.now(UTC)
    for days, outcome in ((91, "emitted"), (91, "skipped"), (91, "failed"), (89, "emitted")):
        connection.execute(
            "insert into onceward.ticks (app, schedule_id, scheduled_at, outcome, epoch) values ('a', %s, %s, %s, 1)",
            (outcome, now - timedelta(days=days), outcome),
        )
    assert forget(connection) == 2
    left = connection.execute("select outcome from onceward.ticks order by 1").fetchall()
    assert left == [("emitted",), ("failed",)]
