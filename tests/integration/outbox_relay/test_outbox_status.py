"""`onceward outbox status` and `onceward runs show` tell when rows wait and nobody relays them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from onceward_cli.main import main
from onceward_consumer.runs import Runs
from tests.support.relay import RelayProcess, make_topic, outbox_rows, publish, slot_name, until
from tests.support.report_command import JsonEncoder
from tests.support.services import Services


class Cli:
    """Runs a command line in this process; keeps what it said on stderr."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured
        self.said = ""

    def __call__(self, *arguments: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        out, self.said = self._captured.readouterr()
        assert not ended.value.code, self.said
        return out

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("outbox", "status", "--output", "json"))
        return found


@pytest.fixture
def cli(database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("ONCEWARD_DATABASE_URL", database)
    monkeypatch.setenv("ONCEWARD_SLOT", slot_name(database))
    return Cli(capsys)


def test_rows_that_nobody_relays_are_told_with_the_remedy(database: str, cli: Cli) -> None:
    publish(database, "nowhere", ("a", b"1"), ("a", b"2"))
    found = cli.status()
    assert (found["pending"], found["relay"], found["wal_status"], found["parked"]) == (2, None, None, 0)
    assert 0 <= found["oldest_seconds"] < 60
    out = cli("outbox", "status")
    assert "none is active" in out
    assert "no slot" in out
    assert "`onceward relay`" in cli.said


def test_a_streaming_relay_its_slot_and_parked_rows_are_shown(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, cli: Cli
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "status")
    relay = RelayProcess(database, services.bootstrap, tmp_path / "relay.log")
    relay.wait_for("relay.active")
    publish(database, topic, ("a", b"x" * 2_000_000), ("a", b"2"))
    until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
    found = cli.status()
    assert (found["pending"], found["oldest_seconds"]) == (0, None)
    assert (found["relay"], found["wal_status"]) == ("streaming", "reserved")
    assert found["retained_bytes"] >= 0
    assert (found["parked"], found["following"]) == (1, 1)
    assert "onceward outbox parked list" in cli.said
    relay.stop()
    until(lambda: cli.status()["relay"] is None, 10, "the relay is gone")


def test_a_polling_relay_is_seen_by_its_lock(
    services: Services, database: str, tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = RelayProcess(database, services.bootstrap, tmp_path / "relay.log", "--mode", "poll")
    relay.wait_for("relay.active")
    assert cli.status()["relay"] == "polling"
    monkeypatch.setenv("ONCEWARD_SLOT", "another")
    assert cli.status()["relay"] is None
    relay.stop()


def test_a_queued_run_says_that_it_waits_for_a_relay(
    services: Services, database: str, tmp_path: Path, cli: Cli
) -> None:
    with psycopg.connect(database) as connection:
        run = Runs(JsonEncoder()).start(connection, "move", {}, expected={"sent": 2}, business_key=str(uuid4()))
    cli("runs", "show", str(run.id))
    assert cli.said == ""
    publish(database, "nowhere", ("a", b"1"))
    cli("runs", "show", str(run.id))
    assert "no relay is active, and 1 row waits in the outbox" in cli.said
    relay = RelayProcess(database, services.bootstrap, tmp_path / "relay.log")
    relay.wait_for("relay.active")
    cli("runs", "show", str(run.id))
    assert cli.said == ""
    relay.stop()
