"""`onceward dlq` finds, shows and decides, one or many, and says what it cannot do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from onceward_cli.dlq import app
from onceward_consumer.dead_letters import Identity
from onceward_producer.default import codec_for
from onceward_runtime.settings import load
from onceward_schemas.errors import DeadLetterError, OncewardError
from onceward_schemas.ids import new_id
from onceward_schemas.registry import RegistryClient
from tests.support.commands import Increment
from tests.support.dead_letters import Given, bury
from tests.support.services import Services

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database: str, services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.setenv("ONCEWARD_DATABASE_URL", database)
    monkeypatch.setenv("ONCEWARD_REGISTRY_URL", services.registry_url)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def run(*arguments: object, answer: str | None = None) -> tuple[int, str]:
    """Exit code and standard output; an error of ours is raised as it is."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=answer)
    if isinstance(result.exception, OncewardError):
        raise result.exception
    return result.exit_code, result.stdout


def as_json(*arguments: object) -> Any:
    return json.loads(run(*arguments, "--output", "json")[1])


def states(connection: Connection) -> dict[str, str]:
    return dict(connection.execute("select key, state from onceward.dead_letters").fetchall())


@pytest.fixture
def letters(connection: Connection) -> dict[str, Identity]:
    """Four, told apart by everything that can be asked for."""
    given = [
        Given(key="ann", hours_ago=48),
        Given(key="bob", reason="timeout", run_id=new_id(), hours_ago=3),
        Given(key="cay", type="test.Pay", lane="hr.pay", hours_ago=2),
        Given(key="dan", group="audit", hours_ago=1),
    ]
    return {str(one.key): bury(connection, one) for one in given}


OPTIONS: list[tuple[list[str], str]] = [
    ([], "ann bob cay dan"),
    (["--app", "hr"], "ann bob cay"),
    (["--group", "audit"], "dan"),
    (["--lane", "hr.pay"], "cay"),
    (["--type", "test.Pay"], "cay"),
    (["--reason", "timeout"], "bob"),
    (["--key", "ann"], "ann"),
    (["--since", "1d"], "bob cay dan"),
    (["--since", "2000-01-01", "--app", "hr", "--reason", "http_404"], "ann cay"),
    (["--since", "2999-01-01T00:00:00Z"], ""),
    (["--limit", "2"], "ann bob"),
    (["--state", "resolved"], ""),
    (["--state", "any", "--limit", "1"], "ann"),
    (["--key", "' or true --"], ""),
]


def test_the_list_is_narrowed_by_every_option(letters: dict[str, Identity]) -> None:
    for options, keys in OPTIONS:
        assert [row["key"] for row in as_json("list", *options)] == keys.split(), options


def test_the_list_is_narrowed_by_run(connection: Connection, letters: dict[str, Identity]) -> None:
    [row] = connection.execute("select run_id from onceward.dead_letters where key = 'bob'").fetchall()
    assert [row["key"] for row in as_json("list", "--run", row[0])] == ["bob"]


def test_groups_are_counted_the_largest_first(connection: Connection, letters: dict[str, Identity]) -> None:
    bury(connection, Given(key="eve", error="ClientError: 404 again"))
    first, *others = as_json("groups")
    assert (first["app"], first["type"], first["reason"], first["count"], first["keys"]) == (
        "hr",
        "test.Move",
        "http_404",
        2,
        2,
    )
    assert first["last_error"] == "ClientError: 404 again"
    assert first["cause"] is None
    assert [other["count"] for other in others] == [1, 1, 1]


def test_what_used_up_the_attempts_is_listed_shown_and_counted_apart(connection: Connection) -> None:
    causes = ["connection", "connection", "http_503"]
    letters = [bury(connection, Given(key=f"k{n}", reason="attempts_exhausted")) for n in range(3)]
    for letter, cause in zip(letters, causes, strict=True):
        connection.execute(
            "update onceward.dead_letters set cause = %s where command_id = %s", (cause, letter.command_id)
        )
    assert sorted(row["cause"] for row in as_json("list", "--reason", "attempts_exhausted")) == causes
    assert [(row["cause"], row["count"]) for row in as_json("groups")] == [("connection", 2), ("http_503", 1)]
    assert as_json("show", letters[2].command_id)["cause"] == "http_503"
    assert "http_503" in run("show", letters[2].command_id)[1]


def test_one_is_shown_in_full_without_its_payload(connection: Connection, letters: dict[str, Identity]) -> None:
    letter = letters["ann"]
    for attempt in (1, 2):
        connection.execute(
            "insert into onceward.attempts (command_id, consumer_group, attempt, outcome, reason, error, worker) "
            "values (%s, 'hr', %s, 'failed', 'http_503', 'ClientError: 503', 'w1')",
            (letter.command_id, attempt),
        )
    connection.execute(
        "insert into onceward.holds (consumer_group, lane, key, state, head_id) values ('hr', 'hr.moves', 'ann', 'dead', %s)",
        (letter.command_id,),
    )
    shown = as_json("show", letter.command_id)
    assert (shown["app"], shown["id"], shown["key"]) == ("hr", str(letter.command_id), "ann")
    assert [attempt["reason"] for attempt in shown["attempts_history"]] == ["http_503", "http_503"]
    assert shown["waiting_behind_it"] == 0
    assert ["type", "test.Move"] in shown["headers"]
    assert "payload" not in shown
    code, text = run("show", letter.command_id)
    assert code == 0
    assert "Failed attempts" in text
    assert "origin" in text


def test_the_payload_is_decoded_when_asked_for(connection: Connection, services: Services) -> None:
    RegistryClient(services.registry_url).register(Increment.SCHEMA.name, Increment.SCHEMA.avro)
    payload = codec_for(load()).encode(Increment(counter="c1", amount=7))
    letter = bury(connection, Given(payload=payload))
    assert as_json("show", letter.command_id, "--payload")["payload"] == {"counter": "c1", "amount": 7, "note": None}


def test_a_payload_that_cannot_be_decoded_is_shown_as_bytes(connection: Connection) -> None:
    letter = bury(connection, Given(payload=b"\x07junk"))
    shown = as_json("show", letter.command_id, "--payload")
    assert shown["payload"] is None
    assert "zero byte" in shown["payload_problem"]
    assert shown["payload_begins"] == "07 6a 75 6e 6b"


def test_some_are_replayed_by_id(connection: Connection, letters: dict[str, Identity]) -> None:
    code, text = run("replay", letters["ann"].command_id, letters["bob"].command_id, "--by", "ops")
    assert (code, text) == (0, "2 replayed.\n")
    assert states(connection) == {"ann": "replaying", "bob": "replaying", "cay": "open", "dan": "open"}


def test_who_collects_logs_gets_a_line_for_each_decision(
    letters: dict[str, Identity],
) -> None:
    environment = os.environ | {"ONCEWARD_LOG_FORMAT": "json"}
    words = ["-m", "onceward_cli.main", "dlq", "replay", str(letters["ann"].command_id), "--by", "ops"]
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True)
    line = json.loads(done.stderr)
    assert (line["event"], line["command_id"], line["actor"]) == (
        "dead_letter.replayed",
        str(letters["ann"].command_id),
        "ops",
    )
    assert done.stdout == "1 replayed.\n"


def test_a_refused_one_makes_the_exit_code_1(connection: Connection, letters: dict[str, Identity]) -> None:
    run("replay", letters["ann"].command_id)
    code, text = run("replay", letters["ann"].command_id, letters["bob"].command_id, "--output", "json")
    said = json.loads(text)
    assert code == 1
    assert [row["id"] for row in said["replayed"]] == [str(letters["bob"].command_id)]
    assert "is being replayed already" in said["refused"][0]["reason"]


def test_all_that_fit_are_decided_in_batches(
    connection: Connection, letters: dict[str, Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onceward_consumer.dead_letter_decisions.BATCH", 2)
    code, _ = run("discard", "--all", "--app", "hr", "--because", "old", "--yes")
    assert code == 0
    assert states(connection) == {"ann": "discarded", "bob": "discarded", "cay": "discarded", "dan": "open"}
    assert connection.execute(
        "select distinct decided_because from onceward.dead_letters where state = 'discarded'"
    ).fetchall() == [("old",)]


def test_many_are_not_decided_without_a_yes(connection: Connection, letters: dict[str, Identity]) -> None:
    with pytest.raises(DeadLetterError, match=r"would replay 4 dead letters\..*--yes"):
        run("replay", "--all")
    assert set(states(connection).values()) == {"open"}


IMPOSSIBLE = [
    (["replay"], "No dead letter is named"),
    (["replay", "x"], "'x' is not an id"),
    (["replay", str(new_id())], "No dead letter has the id"),
    (["replay", str(new_id()), "--all"], "Both ids and --all"),
    (["replay", str(new_id()), "--lane", "x"], "stand beside ids"),
    (["discard", str(new_id()), "--because", "x", "--app", "hr"], "No dead letter of hr"),
    (["list", "--state", "opened"], "There is no state 'opened'"),
    (["list", "--since", "yesterday"], "Write it like 2026-11-30"),
    (["list", "--run", "7"], "'7' is not an id"),
    (["show", str(new_id())], "No dead letter has the id"),
]


def test_what_cannot_be_done_is_said(connection: Connection) -> None:
    for arguments, says in IMPOSSIBLE:
        with pytest.raises(DeadLetterError) as caught:
            run(*arguments)
        assert says in str(caught.value)
        assert caught.value.remedy


def test_a_command_dead_in_two_apps_needs_the_app(connection: Connection) -> None:
    command_id = new_id()
    bury(connection, Given(id=command_id))
    bury(connection, Given(id=command_id, group="audit"))
    with pytest.raises(DeadLetterError, match=r"several apps: audit, hr\. Name one with --app"):
        run("show", command_id)
    assert as_json("show", command_id, "--app", "audit")["app"] == "audit"


def test_a_discard_without_a_reason_is_wrong_usage(connection: Connection) -> None:
    assert run("discard", new_id())[0] == 2
