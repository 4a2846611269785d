"""The demo's exit code says whether every line of its proof holds."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from examples.hr import demo
from examples.hr.checks import Check, GatewayLog
from onceward_schemas.errors import DevstackError


def test_one_false_line_is_enough() -> None:
    console = Console(file=io.StringIO())
    right, wrong = Check("mails", 1, 1), Check("keys held", (0,), (3,))
    assert demo._print(console, [right, right], 1.0)
    assert not demo._print(console, [right, wrong], 1.0)


def test_services_that_do_not_start_fail_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise DevstackError("The disk is full.", remedy="Make room.")

    monkeypatch.setattr(demo, "Stack", refuse)
    monkeypatch.setattr("sys.argv", ["demo"])
    assert demo.main() == 1
    assert "The disk is full. Make room." in capsys.readouterr().out


def test_the_gateway_counts_a_key_once() -> None:
    requests = [
        {"at": 1.0, "key": "a", "employee": 1, "status": 503, "repeat": False},
        {"at": 2.0, "key": "a", "employee": 1, "status": 200, "repeat": False},
        {"at": 3.0, "key": "a", "employee": 1, "status": 200, "repeat": True},
        {"at": 4.0, "key": "b", "employee": 1, "status": 200, "repeat": False},
    ]
    log = GatewayLog(requests)
    assert log.delivered == {1: 2}
    assert (log.repeats, log.turned_away, log.keys_per_employee()) == (1, 1, 2)
    assert log.since(3).delivered == {1: 1}
