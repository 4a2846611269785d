"""`onceward db plan|apply|check` on a real database, with JSON for programs and exit codes for scripts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from onceward_cli.main import main
from onceward_runtime import migrate
from tests.support.databases import fresh_database
from tests.support.services import Services

NAMES = [migration.name for migration in migrate.migrations()]


@pytest.fixture(autouse=True)
def empty(services: Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with fresh_database(services.dsn, template="template1") as dsn:
        monkeypatch.setenv("ONCEWARD_DATABASE_URL", dsn)
        yield


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["db", *arguments])
    return (ended.value.code or 0, *capsys.readouterr())


def test_plan_apply_check(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "check")
    assert (code, out) == (1, "")
    assert "Run `onceward db apply`." in err

    code, out, _ = run(capsys, "plan", "--output", "json")
    assert [row["name"] for row in json.loads(out)] == NAMES
    assert code == 0
    assert "create table onceward.outbox" in run(capsys, "plan", "--sql")[1]

    code, out, _ = run(capsys, "apply", "-o", "json")
    assert [(row["name"], row["state"]) for row in json.loads(out)] == [(name, "applied") for name in NAMES]
    assert run(capsys, "apply", "-o", "json")[1].strip() == "[]"
    assert run(capsys, "check") == (0, "", "The database is up to date.\n")
    assert run(capsys, "plan")[1:] == ("", "The database is up to date.\n")
