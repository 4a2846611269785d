"""`onceward scheduler` runs an application's schedules; `onceward schedules` shows them and what became of their ticks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

from onceward_cli.schedules import app
from onceward_producer.default import codec_for
from onceward_producer.outbox import Outbox
from onceward_runtime.settings import load
from onceward_schemas.errors import AppError, OncewardError
from onceward_schemas.registry import RegistryClient
from tests.support.commands import Increment
from tests.support.consumers import app_name, eventually
from tests.support.scheduler_process import ensure_topic
from tests.support.services import ROOT, Services

Connection = psycopg.Connection[Any]

APP = """
import time
from onceward_consumer.app import App
from tests.support.commands import Increment

app = App({name!r})

@app.schedule("every 1s")
def count(tick):
    return Increment(counter="ticks", amount=tick.scheduled_at.second, note=tick.local_date.isoformat())

@app.schedule("0 7 * * MON-FRI", tz="Asia/Almaty", catch_up="2h")
def digest(tick):
    return None

@app.schedule("every 1s")
def hanging(tick):
    time.sleep(600)
"""


@pytest.fixture
def connection(database: str, services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connection]:
    monkeypatch.setenv("ONCEWARD_DATABASE_URL", database)
    monkeypatch.setenv("ONCEWARD_REGISTRY_URL", services.registry_url)
    monkeypatch.setenv("ONCEWARD_KAFKA_BOOTSTRAP_SERVERS", services.bootstrap)
    RegistryClient(services.registry_url).register(Increment.SCHEMA.name, Increment.SCHEMA.avro)
    ensure_topic(services)
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def schedules(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--output", "json"])
    if isinstance(result.exception, OncewardError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def start(folder: Path, name: str, target: str = "clockwork:app") -> subprocess.Popen[str]:
    (folder / "clockwork.py").write_text(APP.format(name=name))
    return subprocess.Popen(
        [sys.executable, "-m", "onceward_cli.main", "scheduler", target],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_verb_emits_ticks_and_delayed_commands_until_told_to_stop(connection: Connection, tmp_path: Path) -> None:
    codec = codec_for(load())
    with connection.transaction():
        Outbox(codec).publish(
            connection,
            Increment(counter="delayed", amount=1, note=""),
            not_before=datetime.now(UTC) + timedelta(seconds=3),
        )
    process = start(tmp_path, name := app_name("clock"))

    def published() -> dict[str, Increment]:
        rows = connection.execute("select payload from onceward.outbox order by seq").fetchall()
        commands = [codec.decode(row[0]) for row in rows]
        return {each.counter: each for each in commands if isinstance(each, Increment)}

    codec.add(Increment)
    try:
        eventually(lambda: published().keys() >= {"ticks", "delayed"}, "a tick and a delayed command")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    assert (published()["ticks"].note or "") >= "2026"

    count, digest, _ = schedules("list", "--app", name)
    assert (count["id"], count["rule"], count["state"]) == ("count", "every 1s", "active")
    assert (digest["id"], digest["time_zone"], digest["last"]) == ("digest", "Asia/Almaty", None)
    assert datetime.fromisoformat(digest["next"]).hour == 2
    found = schedules("history", "count", "--app", name)
    assert {tick["outcome"] for tick in found} == {"emitted"}
    assert [tick["scheduled_at"] for tick in found] == sorted((tick["scheduled_at"] for tick in found), reverse=True)
    assert all(len(tick["commands"]) == 1 for tick in found)
    assert schedules("history", "digest") == []


def test_a_schedule_says_why_it_is_not_emitted(connection: Connection) -> None:
    columns = "app, id, partition, rule, next_at, due_at, paused_because, undeclared_at, failures"
    rule = json.dumps({"rule": "@daily", "tz": "UTC"})
    soon = datetime.now(UTC) + timedelta(hours=1)
    for row in (
        ("a", soon, soon, None, None, 0),
        ("b", soon, soon, "month end", None, 0),
        ("c", soon, soon, None, soon, 0),
        ("d", soon, soon, None, None, 3),
        ("e", None, None, None, None, 0),
        ("f", soon - timedelta(hours=2), soon - timedelta(hours=2), None, None, 0),
    ):
        connection.execute(
            f"insert into onceward.schedules ({columns}) values ('hr', %s, 0, %s, %s, %s, %s, %s, %s)",
            (row[0], rule, *row[1:]),
        )
    assert [one["state"].split(":")[0] for one in schedules("list")] == [
        "active",
        "paused",
        "undeclared",
        "failing, 3 times in a row",
        "ended",
        "overdue",
    ]


def test_an_unknown_outcome_is_refused(connection: Connection) -> None:
    with pytest.raises(AppError, match="no outcome 'lost'"):
        schedules("history", "--outcome", "lost")


def test_a_bad_rule_is_said_at_the_start_with_its_schedule(connection: Connection, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(APP.format(name="bad").replace("every 1s", "0 25 * * *"))
    process = start(tmp_path, "bad", "bad:app")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "The schedule 'count': '0 25 * * *' is not a cron line: bad hour." in said
