"""Results are tables for people and JSON for programs; nothing else is on stdout."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from onceward_cli import output
from onceward_cli.output import Output, say, show, show_one

ROWS: list[dict[str, Any]] = [
    {"command_id": UUID(int=7), "at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "attempts": 2, "reason": "[red]no"},
    {"command_id": UUID(int=8), "at": None, "attempts": 10, "reason": None},
]


def test_json_is_one_array(capsys: pytest.CaptureFixture[str]) -> None:
    show(ROWS, Output.JSON)
    out, err = capsys.readouterr()
    assert json.loads(out)[0] == {
        "command_id": str(UUID(int=7)),
        "at": "2026-01-02T03:04:05+00:00",
        "attempts": 2,
        "reason": "[red]no",
    }
    assert err == ""


def test_json_of_nothing_is_an_empty_array(capsys: pytest.CaptureFixture[str]) -> None:
    show([], Output.JSON, empty="No dead letters.")
    assert json.loads(capsys.readouterr().out) == []


def test_a_table_has_heads_and_shows_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    show(ROWS, Output.TABLE, title="Dead letters")
    out = capsys.readouterr().out
    assert "Dead letters" in out
    assert "command id" in out
    assert str(UUID(int=7)) in out
    assert "2026-01-02 03:04:05+00:00" in out
    assert "[red]no" in out


def test_an_empty_table_is_a_sentence_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    show([], Output.TABLE, empty="No dead letters.")
    assert capsys.readouterr() == ("", "No dead letters.\n")


def test_one_thing_is_an_object_or_names_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"lasts": timedelta(seconds=1.5), "amount": Decimal("1.10"), "open": True, "lanes": ["a", "b"]}
    show_one(fields, Output.JSON)
    assert json.loads(capsys.readouterr().out) == {"lasts": 1.5, "amount": "1.10", "open": True, "lanes": ["a", "b"]}
    show_one(fields, Output.TABLE)
    out = capsys.readouterr().out
    assert "a, b" in out
    assert "yes" in out


def test_words_to_the_person_are_not_part_of_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    say("Working on [it].")
    assert capsys.readouterr() == ("", "Working on [it].\n")


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of a hundred columns."""
    monkeypatch.setattr(output, "_PIPE_WIDTH", 100)


def letter(number: int) -> dict[str, Any]:
    return {
        "id": UUID(int=number),
        "lane": "hr.compensation-changes",
        "type": "hr.ApplyPackage",
        "reason": "handler-error",
        "dead_at": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "error": f"ValueError: the contract\nof employee {number} " + "is closed " * 20,
    }


@pytest.mark.usefixtures("narrow")
def test_a_narrow_table_keeps_ids_whole_and_each_row_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show([letter(7), letter(8)], Output.TABLE, least=("lane", "dead_at"))
    out, err = capsys.readouterr()
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert len(lines) == 4, out
    assert all(len(line) <= 100 for line in out.splitlines())
    assert lines[2].startswith(str(UUID(int=7)))
    assert "ValueError: the contr" in lines[2]
    assert lines[2].endswith("…")
    assert "handler-error" in lines[2]
    assert "lane" not in lines[0]
    assert "Left out for want of room: lane, dead at." in err


@pytest.mark.usefixtures("narrow")
def test_a_narrow_table_never_folds_an_id_though_nothing_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    ids = [UUID(int=7), UUID(int=8)]
    show([{"schedule": "x" * 90, "reason": "y" * 90, "commands": ids}], Output.TABLE)
    out = capsys.readouterr().out
    assert all(str(each) in out for each in ids)


def test_a_wide_table_leaves_nothing_out(capsys: pytest.CaptureFixture[str]) -> None:
    show([letter(7)], Output.TABLE, least=("lane", "dead_at"))
    out, err = capsys.readouterr()
    assert "hr.compensation-changes" in out
    assert err == ""
