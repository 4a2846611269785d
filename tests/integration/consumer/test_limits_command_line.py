"""`onceward limit`, `pause`, `resume` and `parked`: what they set, show and record, and what they refuse."""

from __future__ import annotations

import importlib
import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import typer
from typer.testing import CliRunner

from onceward_cli.verbs import load
from onceward_schemas.errors import AppError, LimitError, OncewardError, ParkedError
from tests.support.services import Services

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database: str, services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.setenv("ONCEWARD_DATABASE_URL", database)
    monkeypatch.setenv("ONCEWARD_REGISTRY_URL", services.registry_url)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def run(verb: str, *arguments: str) -> str:
    result = CliRunner().invoke(_typer(verb), list(arguments))
    if isinstance(result.exception, OncewardError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout if "json" in arguments else result.output


def _typer(verb: str) -> Any:
    module = importlib.import_module(f"onceward_cli.{verb}")
    if hasattr(module, "app"):
        return module.app
    app = typer.Typer()
    app.command()(getattr(module, verb))
    return app


def as_json(verb: str, *arguments: str) -> Any:
    return json.loads(run(verb, *arguments, "--output", "json"))


def test_a_limit_is_set_shown_and_cleared_on_the_record(connection: Connection) -> None:
    options = ("--app", "hr", "--because", "gateway is slow", "--by", "ann")
    found = as_json("limit", "set", "destination:smtp", "--concurrency", "5", "--rate", "600/m", *options)
    assert (found["concurrency"], found["rate"], found["paused"], found["set_by"]) == (5, "600/m", False, "ann")
    as_json("limit", "set", "destination:smtp", "--concurrency", "off", "--breaker", "off", *options)
    [found] = as_json("limit", "list")
    assert (found["concurrency"], found["rate"], found["breaker"]) == ("off", "600/m", "off")
    run("limit", "clear", "destination:smtp", "--because", "mended", "--by", "bob")
    assert as_json("limit", "list") == []
    history = as_json("limit", "list", "--history")
    assert [(each["action"], each["set_by"], each["because"]) for each in history] == [
        ("clear", "bob", "mended"),
        ("set", "ann", "gateway is slow"),
        ("set", "ann", "gateway is slow"),
    ]
    assert history[1]["before"] == {"rate": "600/m", "paused": False, "breaker": None, "concurrency": 5}
    assert history[0]["after"] is None


@pytest.mark.parametrize(
    ("option", "scope"),
    [("--lane", "lane:x"), ("--type", "type:x"), ("--destination", "destination:x"), ("--tenant", "tenant:x")],
)
def test_each_kind_is_paused_and_resumed(connection: Connection, option: str, scope: str) -> None:
    found = as_json("pause", option, "x", "--app", "hr", "--because", "maintenance")
    assert (found["scope"], found["paused"], found["because"]) == (scope, True, "maintenance")
    with pytest.raises(LimitError, match="paused already"):
        run("pause", option, "x", "--app", "hr", "--because", "again")
    run("resume", option, "x", "--because", "done")
    assert as_json("limit", "list") == []
    assert [each["action"] for each in as_json("limit", "list", "--history")] == ["resume", "pause"]


def test_a_limit_that_is_cleared_stays_paused(connection: Connection) -> None:
    run("limit", "set", "lane:a", "--rate", "1/s", "--app", "hr", "--because", "x")
    run("pause", "--lane", "a", "--app", "hr", "--because", "x")
    run("limit", "clear", "lane:a", "--app", "hr", "--because", "x")
    [found] = as_json("limit", "list")
    assert (found["rate"], found["paused"]) == (None, True)


@pytest.mark.parametrize(
    ("verb", "arguments", "kind", "said"),
    [
        ("limit", ("set", "smtp", "--rate", "1/s"), AppError, "names no limit"),
        ("limit", ("set", "destination:smtp"), LimitError, "Nothing is to be set"),
        ("limit", ("set", "lane:a", "--rate", "much"), AppError, "rate is 'much'"),
        ("limit", ("set", "lane:a", "--concurrency", "-3"), LimitError, "--concurrency is '-3'"),
        ("limit", ("set", "lane:a", "--breaker", "off"), LimitError, "has no breaker"),
        ("limit", ("clear", "lane:a"), LimitError, "Nothing is set for lane:a"),
        ("pause", (), LimitError, "Nothing is named"),
        ("pause", ("--lane", "a", "--type", "b"), LimitError, "lane:a and type:b are named"),
        ("pause", ("--tenant", "*"), LimitError, "cannot be paused at once"),
        ("resume", ("--lane", "a"), LimitError, "is not paused"),
    ],
)
def test_what_is_wrong_is_said(
    connection: Connection, verb: str, arguments: tuple[str, ...], kind: type[OncewardError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        run(verb, *arguments, "--app", "hr", "--because", "x")


def test_an_empty_reason_is_none(connection: Connection) -> None:
    with pytest.raises(LimitError, match="No reason"):
        run("pause", "--lane", "a", "--app", "hr", "--because", " ")


def test_the_app_must_be_named_where_there_are_several(connection: Connection) -> None:
    with pytest.raises(LimitError, match="No worker is known here"):
        run("pause", "--lane", "a", "--because", "x")
    for app in ("hr", "shop"):
        run("pause", "--lane", "a", "--app", app, "--because", "x")
    with pytest.raises(LimitError, match="There are hr, shop"):
        run("resume", "--lane", "a", "--because", "x")


def test_a_name_that_nobody_has_is_doubted(connection: Connection) -> None:
    options = ("--app", "hr", "--because", "x")
    assert "No worker of hr has run" in run("pause", "--lane", "hr.mail", *options)
    connection.execute("insert into onceward.limit_states (consumer_group, scope) values ('hr', 'lane:hr.mail')")
    assert "Did you mean lane:hr.mail?" in run("pause", "--lane", "hr.mial", *options)
    assert "No" not in run("resume", "--lane", "hr.mail", *options).replace("Nothing is set", "")


def park(connection: Connection, key: str, reason: str, *, tenant: str = "acme") -> str:
    identity = str(uuid.uuid4())
    headers = json.dumps([["id", identity], ["type", "test.Increment"], ["tenant", tenant]])
    connection.execute(
        'insert into onceward.parked (consumer_group, command_id, lane, key, reason, topic, partition, "offset",'
        " timestamp_ms, headers) values ('hr', %s, 'lane', %s, %s, 'lane', 0, 0, 0, %s)",
        (identity, key, reason, headers),
    )
    return identity


def test_parked_commands_are_shown_and_given_up(connection: Connection) -> None:
    first, second = park(connection, "a", "paused"), park(connection, "b", "throttled", tenant="loud")
    follower = park(connection, "a", "held")
    assert [(each["reason"], each["commands"]) for each in as_json("parked", "groups")] == [
        ("held", 1),
        ("paused", 1),
        ("throttled", 1),
    ]
    assert [each["id"] for each in as_json("parked", "list")] == [first, second, follower]
    [found] = as_json("parked", "list", "--tenant", "loud")
    assert (found["id"], found["type"], found["app"]) == (second, "test.Increment", "hr")
    assert as_json("parked", "discard", second, "--because", "too loud", "--by", "ann") == {"discarded": [second]}
    assert as_json("parked", "discard", "--all", "--yes", "--because", "all") == {"discarded": [first]}
    reasons = connection.execute("select command_id::text, reason from onceward.parked").fetchall()
    assert dict(reasons) == {first: "discard", second: "discard", follower: "held"}
    [decided] = connection.execute(
        "select reason, decided_by, because from onceward.parked_decisions where command_id = %s", (second,)
    ).fetchall()
    assert decided == ("throttled", "ann", "too loud")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "No parked command is named"),
        (("x",), "not an id"),
        (("--all",), "give up all that fit"),
        (("--all", "--yes", "--reason", "held"), "wait for the head"),
        ((str(uuid.UUID(int=1)),), "No parked command fits"),
    ],
)
def test_what_cannot_be_given_up(connection: Connection, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(ParkedError, match=said):
        run("parked", "discard", *arguments, "--because", "x")


def test_every_verb_can_be_loaded() -> None:
    assert [load(verb).name for verb in ("limit", "pause", "resume", "parked")] == [
        "limit",
        "pause",
        "resume",
        "parked",
    ]
