"""`onceward runs` shows how runs stand, follows one, says what failed and why, and retries that."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from typer.testing import CliRunner

from onceward_cli.runs import app
from onceward_consumer.run_items import RECORD_ITEMS, RunItem, arrays
from onceward_consumer.run_keeper import RunKeeper, check_runs
from onceward_consumer.runs import Runs
from onceward_schemas.errors import OncewardError, RunError
from tests.support.dead_letters import Given, bury
from tests.support.report_command import JsonEncoder

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.setenv("ONCEWARD_DATABASE_URL", database)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def run(*arguments: object) -> tuple[int, str]:
    """Exit code and standard output; an error of ours is raised as it is."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, OncewardError):
        raise result.exception
    return result.exit_code, result.stdout


def as_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--output", "json")[1])


def started(connection: Connection, **stages: int) -> UUID:
    with connection.transaction():
        return Runs(JsonEncoder()).start(connection, "move", {"to": 7}, expected=stages, business_key=str(uuid4())).id


def with_one_failed(connection: Connection) -> UUID:
    run_id = started(connection, sent=2)
    letter = bury(connection, Given(run_id=run_id))
    failed = RunItem(run_id, "sent", "ann", "failed", "attempts_exhausted", "503 from gateway", *letter)
    connection.execute(RECORD_ITEMS, arrays([failed, RunItem(run_id, "sent", "bob", "done")]))
    check_runs(connection)
    return run_id


def test_runs_are_listed_and_chosen(connection: Connection) -> None:
    first = with_one_failed(connection)
    second = started(connection, changed=2, sent=2)
    assert [row["id"] for row in as_json("list")] == [str(second), str(first)]
    assert [row["state"] for row in as_json("list", "--state", "completed_with_errors")] == ["completed_with_errors"]
    assert as_json("list", "--kind", "other") == []
    connection.execute("update onceward.runs set progressed_at = now() - interval '1 hour'")
    assert [row["id"] for row in as_json("list", "--state", "stuck")] == [str(second)]
    assert "changed 0/2, sent 0/2" in run("list")[1]


def test_one_run_is_shown_with_its_stages(connection: Connection) -> None:
    run_id = with_one_failed(connection)
    shown = as_json("show", run_id)
    assert (shown["state"], shown["percent"], shown["params"]) == ("completed_with_errors", 100, {"to": 7})
    assert shown["stages"] == [{"name": "sent", "expected": 2, "done": 1, "failed": 1, "retrying": 0, "percent": 100}]
    code, text = run("show", run_id)
    assert code == 0
    assert "completed with errors" in text
    assert "2/2  1 failed" in text


def test_watching_ends_with_the_run(connection: Connection, database: str) -> None:
    run_id = started(connection, sent=1)
    keeper = RunKeeper(database)
    keeper.start()

    def finish() -> None:
        with psycopg.connect(database, autocommit=True) as other:
            other.execute(RECORD_ITEMS, arrays([RunItem(run_id, "sent", "ann", "done")]))

    timer = threading.Timer(0.5, finish)
    timer.start()
    assert run("show", run_id, "--watch")[0] == 0
    keeper.stop()
    assert as_json("show", run_id, "--watch")["state"] == "completed"
    assert run("show", with_one_failed(connection), "--watch")[0] == 1


def test_failed_items_are_listed_with_reasons_a_person_understands(connection: Connection) -> None:
    [row] = as_json("failed", with_one_failed(connection))
    assert (row["item"], row["why"]) == ("ann", "Every attempt failed, the last one with: 503 from gateway")


def test_retry_replays_and_says_what_it_could_not(connection: Connection) -> None:
    run_id = with_one_failed(connection)
    assert as_json("retry", run_id, "--by", "ann") == {"retried_commands": 1, "left": []}
    connection.execute(RECORD_ITEMS, arrays([RunItem(run_id, "sent", "ann", "failed", "gone")]))
    code, text = run("retry", run_id)
    assert (code, text) == (1, "0 commands are being retried.\n")


@pytest.mark.parametrize("arguments", [["show", "7"], ["show", str(uuid4())], ["list", "--state", "done"]])
def test_what_does_not_exist_is_said(connection: Connection, arguments: list[str]) -> None:
    with pytest.raises(RunError) as raised:
        run(*arguments)
    assert raised.value.remedy
