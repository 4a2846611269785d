"""A run with a stage that nothing counts would never end: a name that looks like a slip is told when it starts."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.runs import doubtful_stages
from onceward_schemas.errors import TransactionError
from tests.support.commands import Increment


def test_a_slip_is_told_with_the_name_that_handlers_count() -> None:
    assert doubtful_stages({"invoice": 2}, ["invoiced", "paid"]) == [
        "expects items of the stage 'invoice'; the app's handlers count 'invoiced'."
    ]


def test_a_number_alone_is_told_where_handlers_count_other_stages() -> None:
    assert doubtful_stages(2, ["paid", "invoiced"]) == [
        "expects items of the stage 'items'; the app's handlers count 'invoiced', 'paid'."
    ]


@pytest.mark.parametrize("expected", [{"invoiced": 2}, {"invoiced": 2, "mailed elsewhere": 2}, {"reviewed by hand": 1}])
def test_what_others_may_count_is_not(expected: dict[str, int]) -> None:
    assert doubtful_stages(expected, ["invoiced"]) == []


def test_an_app_without_stages_warns_of_nothing() -> None:
    assert doubtful_stages(2, []) == doubtful_stages({"invoice": 2}, ()) == []


def test_an_apps_runs_know_its_handlers(caplog: pytest.LogCaptureFixture) -> None:
    app = App("billing")

    @app.handler(Increment, item_stage="invoiced")
    def invoice(command: Increment, ctx: Any) -> None:
        """Does nothing."""

    with caplog.at_level(logging.WARNING), pytest.raises(TransactionError):
        app.runs.start(object(), "billing", expected={"invoice": 2})  # type: ignore[call-overload]
    assert caplog.messages == [
        "The run 'billing' expects items of the stage 'invoice'; the app's handlers count 'invoiced'."
    ]
