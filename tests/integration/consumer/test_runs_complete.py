"""A run completes when every stage has its items, once; its follow-up command is published with that, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from prometheus_client import REGISTRY

from onceward_consumer.run_items import RECORD_ITEMS, ItemState, RunItem, arrays
from onceward_consumer.run_keeper import RunKeeper, check_runs
from onceward_consumer.run_progress import RunProgress, failed_items, get, list_runs, stuck
from onceward_consumer.runs import Runs, reopen
from onceward_schemas.ids import new_id
from tests.support.consumers import eventually
from tests.support.report_command import JsonEncoder, MakeReport, decoded


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def start(connection: psycopg.Connection, expected: int | dict[str, int], follow_up: bool = True) -> UUID:
    with connection.transaction():
        return (
            Runs(JsonEncoder())
            .start(connection, "import", expected=expected, follow_up=MakeReport(report="r1") if follow_up else None)
            .id
        )


def record(connection: psycopg.Connection, items: Iterable[RunItem]) -> None:
    connection.execute(RECORD_ITEMS, arrays(items))


def items(run_id: UUID, names: Iterable[str], state: ItemState = "done", stage: str = "items") -> list[RunItem]:
    return [RunItem(run_id, stage, name, state) for name in names]


def look(connection: psycopg.Connection, run_id: UUID) -> RunProgress:
    connection.execute("update onceward.runs set check_after = now()")
    check_runs(connection)
    return get(connection, run_id)


def published(connection: psycopg.Connection) -> list[tuple[UUID, UUID, bytes]]:
    return connection.execute("select id, run_id, payload from onceward.outbox order by seq").fetchall()


def test_a_run_goes_from_queued_over_running_to_completed(connection: psycopg.Connection) -> None:
    run_id = start(connection, {"changed": 2, "sent": 1})
    assert look(connection, run_id).state == "queued"
    record(connection, items(run_id, "a", stage="changed"))
    run = look(connection, run_id)
    assert (run.state, run.percent, [stage.processed for stage in run.stages]) == ("running", 33, [1, 0])
    record(connection, items(run_id, "ab", stage="changed") + items(run_id, "a", stage="sent"))
    run = look(connection, run_id)
    assert (run.state, run.percent, run.completed_at is not None) == ("completed", 100, True)


def test_the_follow_up_is_the_command_given_at_the_start(connection: psycopg.Connection) -> None:
    run_id = start(connection, 1)
    record(connection, items(run_id, "a"))
    run = look(connection, run_id)
    [(command_id, of_run, payload)] = published(connection)
    assert (command_id, of_run) == (run.follow_up_id, run_id)
    assert decoded(payload) == {"report": "r1", "date": ""}
    look(connection, run_id)
    assert len(published(connection)) == 1


def test_a_repeated_item_is_counted_once_and_a_surplus_one_does_no_harm(connection: psycopg.Connection) -> None:
    run_id = start(connection, 3)
    for _ in range(3):
        record(connection, items(run_id, "a"))
    assert look(connection, run_id).stages[0].done == 1
    record(connection, items(run_id, "abcd"))
    assert look(connection, run_id).state == "completed"


def test_done_wins_whatever_comes_before_or_after(connection: psycopg.Connection) -> None:
    run_id = start(connection, 2)
    record(connection, items(run_id, "ab", "failed"))
    record(connection, items(run_id, "a", "done") + items(run_id, "a", "failed"))
    record(connection, items(run_id, "a", "failed"))
    record(connection, items(run_id, "b", "retrying"))
    stage = look(connection, run_id).stages[0]
    assert (stage.done, stage.failed, stage.retrying) == (1, 0, 1)


def test_failed_items_complete_the_run_with_errors_and_keep_their_reasons(connection: psycopg.Connection) -> None:
    run_id = start(connection, 2)
    command_id = new_id()
    wrong = RunItem(run_id, "items", "b", "failed", "permanent", "no such address\nTraceback ...", "hr", command_id)
    record(connection, [*items(run_id, "a"), wrong])
    assert look(connection, run_id).state == "completed_with_errors"
    [item] = failed_items(connection, run_id)
    assert (item.item, item.command_id, item.consumer_group) == ("b", command_id, "hr")
    assert item.explanation.endswith(": no such address")
    assert len(published(connection)) == 1


def test_a_run_that_expects_nothing_completes_at_once(connection: psycopg.Connection) -> None:
    assert look(connection, start(connection, 0)).state == "completed"
    assert len(published(connection)) == 1


def test_a_reopened_run_completes_again_without_a_second_follow_up(connection: psycopg.Connection) -> None:
    run_id = start(connection, 2)
    command_id = new_id()
    record(connection, items(run_id, "a"))
    record(connection, [RunItem(run_id, "items", "b", "failed", "permanent", "x", "hr", command_id)])
    assert look(connection, run_id).state == "completed_with_errors"
    assert reopen(connection, "other", [command_id]) == 0
    assert reopen(connection, "hr", [command_id]) == 1
    run = look(connection, run_id)
    assert (run.state, run.completed_at, run.stages[0].retrying) == ("running", None, 1)
    record(connection, items(run_id, "b"))
    run = look(connection, run_id)
    assert (run.state, run.stages[0].done, run.stages[0].failed) == ("completed", 2, 0)
    assert len(published(connection)) == 1


def test_a_still_run_is_found_stuck_and_looked_at_less_often(connection: psycopg.Connection) -> None:
    run_id = start(connection, 2)
    record(connection, items(run_id, "a"))
    look(connection, run_id)
    assert stuck(connection, timedelta(minutes=5)) == []
    connection.execute("update onceward.runs set progressed_at = now() - interval '10 minutes'")
    assert [run.id for run in stuck(connection, timedelta(minutes=5))] == [run_id]
    look(connection, run_id)
    [(wait,)] = connection.execute(
        "select extract(epoch from check_after - now())::float8 from onceward.runs"
    ).fetchall()
    assert 3 < wait <= 5


def test_a_run_that_one_keeper_looks_at_is_left_alone_by_the_others(database: str) -> None:
    with psycopg.connect(database) as first, psycopg.connect(database, autocommit=True) as second:
        run_id = start(second, 1)
        record(second, items(run_id, "a"))
        first.execute("select from onceward.runs where id = %s for no key update", [run_id])
        second.execute("set lock_timeout = '1s'")
        assert check_runs(second).looked_at == 0
        first.rollback()
        assert [run.run_id for run in check_runs(second).completed] == [run_id]


def test_four_keepers_complete_forty_runs_once_each_while_workers_record(database: str) -> None:
    keepers = [RunKeeper(database) for _ in range(4)]
    with psycopg.connect(database, autocommit=True) as connection:
        ids = [start(connection, 50) for _ in range(40)]
        for keeper in keepers:
            keeper.start()

        def work(share: list[UUID]) -> None:
            with psycopg.connect(database, autocommit=True) as mine:
                for position in range(0, 50, 10):
                    for run_id in share:
                        record(mine, items(run_id, [str(n) for n in range(position, position + 10)]))

        threads = [threading.Thread(target=work, args=(ids[first::2],)) for first in range(2)]
        threads += [threading.Thread(target=work, args=(list(reversed(ids)),))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        deadline = time.monotonic() + 15
        while any(run.open for run in list_runs(connection)) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.4)  # a keeper that would publish again has looked again by now
        assert {run.state for run in list_runs(connection)} == {"completed"}
        assert all(keeper.alive() and keeper.ready() for keeper in keepers)
        for keeper in keepers:
            keeper.stop()
        assert sorted(run_id for _, run_id, _ in published(connection)) == sorted(ids)


def test_a_keeper_outlives_the_loss_of_its_connection(database: str) -> None:
    keeper = RunKeeper(database)
    keeper.start()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'onceward runs'"
            " and datname = current_database()"
        )
        run_id = start(connection, 1)
        record(connection, items(run_id, "a"))
        deadline = time.monotonic() + 10
        while get(connection, run_id).open and time.monotonic() < deadline:
            time.sleep(0.05)
        assert get(connection, run_id).state == "completed"
    keeper.stop()
    keeper.stop()
    assert not keeper.ended


def test_open_runs_are_counted_by_state(connection: psycopg.Connection, database: str) -> None:
    runs = [start(connection, 1, follow_up=False) for _ in range(3)]
    connection.execute("update onceward.runs set kind = 'counted'")
    keeper = RunKeeper(database)
    keeper.start()

    def counted(state: str) -> float | None:
        return REGISTRY.get_sample_value("onceward_runs", {"kind": "counted", "state": state})

    try:
        eventually(lambda: counted("queued") == 3, "three runs")
        record(connection, [item for run_id in runs for item in items(run_id, "a")])
        eventually(lambda: counted("queued") == 0, "no run")
    finally:
        keeper.stop()
