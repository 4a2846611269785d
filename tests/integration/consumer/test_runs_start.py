"""A run is started in the caller's transaction, once for each business key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from onceward_consumer.run_progress import get, list_runs
from onceward_consumer.runs import Runs, StartedRun
from onceward_schemas.errors import InvalidCommandError, RunError, TransactionError
from tests.support.report_command import JsonEncoder, MakeReport


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database) as connection:
        yield connection


@pytest.fixture
def runs() -> Runs:
    return Runs(JsonEncoder())


def test_a_run_is_queued_with_its_stages_in_order(connection: psycopg.Connection, runs: Runs) -> None:
    started = runs.start(
        connection, "reorganise", {"department": 7}, expected={"changed": 8000, "notified": 7900}, created_by="ann"
    )
    run = get(connection, started.id)
    assert (run.state, run.params, run.created_by, run.percent) == ("queued", {"department": 7}, "ann", 0)
    assert [(stage.name, stage.expected, stage.processed) for stage in run.stages] == [
        ("changed", 8000, 0),
        ("notified", 7900, 0),
    ]
    assert not started.duplicate


def test_a_number_alone_means_one_stage(connection: psycopg.Connection, runs: Runs) -> None:
    run = get(connection, runs.start(connection, "import", expected=3).id)
    assert [(stage.name, stage.expected) for stage in run.stages] == [("items", 3)]


def test_pressing_twice_returns_the_first_run(connection: psycopg.Connection, runs: Runs) -> None:
    first = runs.start(connection, "reorganise", expected=10, business_key="2026-05")
    again = runs.start(connection, "reorganise", {"other": 1}, expected=99, business_key="2026-05")
    assert again == StartedRun(first.id, duplicate=True)
    assert [run.stages[0].expected for run in list_runs(connection)] == [10]


def test_the_same_key_of_another_kind_is_another_run(connection: psycopg.Connection, runs: Runs) -> None:
    first = runs.start(connection, "reorganise", expected=1, business_key="k")
    assert runs.start(connection, "import", expected=1, business_key="k").id != first.id
    assert runs.start(connection, "import", expected=1).id != runs.start(connection, "import", expected=1).id


def test_pressing_eight_times_at_once_starts_one_run(database: str, runs: Runs) -> None:
    found: list[StartedRun] = []
    barrier = threading.Barrier(8)

    def press() -> None:
        with psycopg.connect(database) as connection:
            barrier.wait()
            found.append(runs.start(connection, "reorganise", expected=10, business_key="2026-05"))

    threads = [threading.Thread(target=press) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({run.id for run in found}) == 1
    assert [run.duplicate for run in found].count(False) == 1


def test_a_rolled_back_press_leaves_the_key_to_the_next(database: str, runs: Runs) -> None:
    with psycopg.connect(database) as connection:
        first = runs.start(connection, "reorganise", expected=10, business_key="k")
        connection.rollback()
        second = runs.start(connection, "reorganise", expected=10, business_key="k")
        assert (second.duplicate, second.id != first.id) == (False, True)


def test_a_sqlalchemy_session_starts_a_run_with_its_own_changes(database: str, runs: Runs) -> None:
    engine = create_engine(database.replace("postgresql://", "postgresql+psycopg://"))
    with Session(engine) as session, session.begin():
        started = runs.start(session, "import", expected=1)
    with Session(engine) as session:
        session.begin()
        lost = runs.start(session, "import", expected=1)
        session.rollback()
    with engine.begin() as open_connection:
        other = runs.start(open_connection, "import", expected=1)
    engine.dispose()
    with psycopg.connect(database) as connection:
        assert {run.id for run in list_runs(connection)} == {started.id, other.id}
        with pytest.raises(RunError, match="There is no run"):
            get(connection, lost.id)


def test_a_run_without_an_open_transaction_is_refused(database: str, runs: Runs) -> None:
    with psycopg.connect(database, autocommit=True) as connection, pytest.raises(TransactionError):
        runs.start(connection, "import", expected=1)
    with (
        Session(create_engine(database.replace("postgresql://", "postgresql+psycopg://"))) as session,
        pytest.raises(TransactionError),
    ):
        runs.start(session, "import", expected=1)
    with pytest.raises(TransactionError, match="A str"):
        runs.start("postgresql://", "import", expected=1)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"kind": " "}, "kind"),
        ({"expected": {}}, "expected"),
        ({"expected": {"sent": -1}}, "sent"),
        ({"expected": {"sent": True}}, "sent"),
        ({"expected": {"": 1}}, "expected"),
        ({"params": {"at": object()}}, "params"),
        ({"params": {"text": "x" * 70_000}}, "params"),
        ({"params": {"rate": float("nan")}}, "params"),
        ({"params": {"text": "a\0b"}}, "params"),
        ({"business_key": ""}, "business_key"),
    ],
)
def test_a_wrong_argument_is_named(
    connection: psycopg.Connection, runs: Runs, wrong: dict[str, Any], named: str
) -> None:
    arguments: dict[str, Any] = {"kind": "import", "expected": 1} | wrong
    with pytest.raises(RunError, match=named):
        runs.start(connection, **arguments)
    assert list_runs(connection) == []


def test_a_follow_up_that_is_no_command_is_refused_at_the_start(connection: psycopg.Connection, runs: Runs) -> None:
    with pytest.raises(InvalidCommandError):
        runs.start(connection, "import", expected=1, follow_up="report")  # type: ignore[call-overload]
    runs.start(connection, "import", expected=1, follow_up=MakeReport(report="headcount"))


def test_a_run_is_started_from_asyncio_too(database: str, runs: Runs) -> None:
    async def press() -> tuple[StartedRun, StartedRun]:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            first = await runs.start(connection, "import", expected=1, business_key="k")
        engine = create_async_engine(database.replace("postgresql://", "postgresql+asyncpg://"))
        async with AsyncSession(engine) as session, session.begin():
            second = await runs.start(session, "import", expected=1, business_key="k")
        await engine.dispose()
        return first, second

    first, second = asyncio.run(press())
    assert (first.duplicate, second) == (False, StartedRun(first.id, duplicate=True))


def test_an_unknown_run_is_said_to_be_unknown(connection: psycopg.Connection) -> None:
    with pytest.raises(RunError, match="There is no run"):
        get(connection, uuid4())
