"""Only what failed of a run is retried; the run opens again, completes again, and does not repeat its follow-up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from onceward_consumer.dead_letter_decisions import discard
from onceward_consumer.dead_letters import Identity
from onceward_consumer.run_items import RECORD_ITEMS, RunItem, arrays
from onceward_consumer.run_keeper import check_runs
from onceward_consumer.run_progress import RunProgress, failed_items, get
from onceward_consumer.run_retry import retry_failed
from onceward_consumer.runs import Runs
from onceward_schemas.errors import RunError
from tests.support.dead_letters import Given, bury
from tests.support.report_command import JsonEncoder, MakeReport

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def run_id(connection: Connection) -> UUID:
    """Five expected in each of two stages; a, b and c are done in both."""
    with connection.transaction():
        run_id = (
            Runs(JsonEncoder())
            .start(connection, "move", expected={"changed": 5, "sent": 5}, follow_up=MakeReport(report="r"))
            .id
        )
    record(connection, [RunItem(run_id, stage, name, "done") for stage in ("changed", "sent") for name in "abc"])
    return run_id


def record(connection: Connection, items: list[RunItem]) -> None:
    connection.execute(RECORD_ITEMS, arrays(items))


def fail(connection: Connection, run_id: UUID, stage: str, *names: str) -> Identity:
    """One command, dead, behind items of these names."""
    letter = bury(connection, Given(key=names[0], run_id=run_id, reason="permanent"))
    record(
        connection,
        [
            RunItem(run_id, stage, name, "failed", "permanent", "no address", letter.group, letter.command_id)
            for name in names
        ],
    )
    return letter


def look(connection: Connection, run_id: UUID) -> RunProgress:
    connection.execute("update onceward.runs set check_after = now()")
    check_runs(connection)
    return get(connection, run_id)


def replayed(connection: Connection) -> list[UUID]:
    return [
        row[0]
        for row in connection.execute("select id from onceward.outbox where aggregatetype = 'replay' order by seq")
    ]


def test_only_the_failed_items_are_retried_and_the_run_completes_again(connection: Connection, run_id: UUID) -> None:
    letters = [fail(connection, run_id, stage, name) for stage in ("changed", "sent") for name in "de"]
    run = look(connection, run_id)
    assert (run.state, run.failed) == ("completed_with_errors", 4)

    done = retry_failed(connection, run_id, by="ann")
    assert (done.commands, done.left) == (4, [])
    assert replayed(connection) == [letter.command_id for letter in letters]
    run = look(connection, run_id)
    assert (run.state, [stage.retrying for stage in run.stages]) == ("running", [2, 2])

    record(connection, [RunItem(run_id, stage, name, "done") for stage in ("changed", "sent") for name in "de"])
    run = look(connection, run_id)
    assert (run.state, run.percent, run.failed) == ("completed", 100, 0)
    follow_ups = connection.execute("select id from onceward.outbox where aggregatetype = 'report'").fetchall()
    assert follow_ups == [(run.follow_up_id,)]


def test_a_stage_alone_is_retried(connection: Connection, run_id: UUID) -> None:
    fail(connection, run_id, "changed", "d")
    sent = fail(connection, run_id, "sent", "d")
    assert retry_failed(connection, run_id, stage="sent", by="ann").commands == 1
    assert replayed(connection) == [sent.command_id]
    assert [(item.stage, item.item) for item in failed_items(connection, run_id)] == [("changed", "d")]


def test_pressing_retry_twice_replays_once(connection: Connection, run_id: UUID) -> None:
    fail(connection, run_id, "sent", "d")
    assert retry_failed(connection, run_id, by="ann").commands == 1
    assert retry_failed(connection, run_id, by="ann").commands == 0
    assert len(replayed(connection)) == 1


def test_a_package_of_items_is_replayed_as_one_command(connection: Connection, run_id: UUID) -> None:
    fail(connection, run_id, "changed", "d", "e")
    assert retry_failed(connection, run_id, by="ann").commands == 1
    assert look(connection, run_id).stages[0].retrying == 2


def test_many_are_retried_in_batches(connection: Connection, run_id: UUID) -> None:
    for name in "defgh":
        fail(connection, run_id, "sent", name)
    assert retry_failed(connection, run_id, by="ann", batch=2).commands == 5
    assert len(set(replayed(connection))) == 5


def test_an_item_without_an_open_dead_letter_stays_failed_and_is_named(connection: Connection, run_id: UUID) -> None:
    given_up = fail(connection, run_id, "sent", "d")
    discard(connection, [given_up], by="bob", because="left the company")
    record(connection, [RunItem(run_id, "sent", "e", "failed", "refused_by_handler")])
    fail(connection, run_id, "changed", "d")
    done = retry_failed(connection, run_id, by="ann")
    assert (done.commands, [item.item for item in done.left]) == (1, ["d", "e"])


def test_another_runs_items_are_left_alone(connection: Connection, run_id: UUID) -> None:
    with connection.transaction():
        other = Runs(JsonEncoder()).start(connection, "move", expected={"sent": 1}).id
    fail(connection, other, "sent", "d")
    mine = fail(connection, run_id, "sent", "d")
    retry_failed(connection, run_id, by="ann")
    assert replayed(connection) == [mine.command_id]
    assert look(connection, other).state == "completed_with_errors"


def test_an_unknown_run_or_stage_is_named(connection: Connection, run_id: UUID) -> None:
    with pytest.raises(RunError, match="There is no run"):
        retry_failed(connection, uuid4(), by="ann")
    with pytest.raises(RunError, match=r"no stage 'posted'.*changed, sent"):
        retry_failed(connection, run_id, stage="posted", by="ann")
