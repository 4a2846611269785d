"""`onceward outbox parked` lists what Kafka refused, and carries out what an operator decides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceward_cli.main import main
from tests.support.relay import RelayProcess, make_topic, outbox_rows, publish, read, until
from tests.support.services import Services


@pytest.fixture
def cli(database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Runs a command line; returns exit code, what it printed as JSON, and what it said."""
    monkeypatch.setenv("ONCEWARD_DATABASE_URL", database)

    def run(*arguments: str) -> tuple[int, list[dict[str, object]], str]:
        with pytest.raises(SystemExit) as ended:
            main(["outbox", "parked", *arguments, *(() if "--help" in arguments else ("--output", "json"))])
        said = capsys.readouterr()
        return int(ended.value.code or 0), json.loads(said.out or "[]"), said.err

    return run


def test_an_operator_discards_a_bad_row_and_its_follower_goes_on(  # type: ignore[no-untyped-def]
    services: Services, database: str, topic_prefix: str, tmp_path: Path, cli
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "cli")
    relay = RelayProcess(database, services.bootstrap, tmp_path / "relay.log")
    relay.wait_for("relay.active")
    big, follower = publish(database, topic, ("a", b"x" * 2_000_000), ("a", b"2"))
    until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
    code, rows, _ = cli("list")
    assert code == 0
    assert [(row["seq"], row["reason"], row["key"], row["bytes"]) for row in rows] == [
        (big, "oversized", "a", 2_000_000),
        (follower, "follows", "a", 1),
    ]
    assert "x" * 100 not in json.dumps(rows)
    code, rows, _ = cli("discard", str(big), "--because", "too big", "--actor", "ann")
    assert (code, rows) == (0, [{"seq": big}])
    assert [record.value for record in read(services.bootstrap, topic, 1, 10)] == [b"2"]
    until(lambda: cli("list")[1] == [], 10, "nothing is parked")
    assert relay.stop() == 0
    _, rows, _ = cli("list", "--state", "any")
    assert [(row["state"], row["decided_by"], row["decided_because"]) for row in rows] == [
        ("discarded", "ann", "too big"),
        ("replayed", None, None),
    ]


def test_rows_must_be_named(cli) -> None:  # type: ignore[no-untyped-def]
    code, _, said = cli("replay")
    assert code == 1
    assert "--all" in said
