"""The name of an item that cannot be stored is its command's failure, and the worker goes on."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from onceward_consumer import settle
from onceward_consumer.context import HandlerContext
from onceward_consumer.failures import Permanent, classify
from onceward_consumer.groups import run_group
from onceward_consumer.items import Engine, Item, prepared
from onceward_consumer.moods import Mood
from onceward_consumer.outcomes import Dead, Done
from onceward_schemas.errors import InvalidCommandError
from tests.support.commands import Increment
from tests.unit.consumer.test_groups_find_the_culprit import drive, group

BAD: list[Any] = [7, None, "", "x" * 1025, "é" * 600, "a\0b", "\ud800"]


class Decoded:
    """A codec that always answers with the same command."""

    def decode(self, payload: bytes) -> Increment:
        return Increment(counter="a")


def of_a_run() -> tuple[Item, Engine]:
    [item], engine = group("a")
    assert item.envelope is not None
    item.envelope = dataclasses.replace(item.envelope, run_id=uuid.uuid4())
    return item, engine


@pytest.mark.parametrize("bad", BAD)
def test_a_handler_that_counts_one_fails_for_good(bad: Any) -> None:
    item, engine = of_a_run()
    context = HandlerContext(item, engine, None)
    calls: list[Callable[[], None]] = [
        lambda: context.items_done("sent", ["good", bad]),
        lambda: context.items_failed("sent", {bad: "no"}),
        lambda: context.items_done(bad, ["good"]),
    ]
    for count in calls:
        with pytest.raises(InvalidCommandError) as refused:
            count()
        assert refused.value.field in ("item", "stage")
        assert isinstance(classify(refused.value), Permanent)
    assert not item.run_items


def test_an_item_counts_once_and_its_reason_is_made_fit_to_store() -> None:
    item, engine = of_a_run()
    context = HandlerContext(item, engine, None)
    context.items_done("sent", ["a", "a", "x" * 1024])
    context.items_failed("sent", {"b": "no\0mailbox"})
    assert [(each.item[:2], each.reason) for each in item.run_items] == [("a", None), ("xx", None), ("b", "nomailbox")]


@pytest.mark.parametrize("bad", BAD)
def test_a_function_of_items_that_names_one_makes_its_command_a_dead_letter(bad: Any) -> None:
    item, engine = of_a_run()
    assert item.handler is not None
    handler = dataclasses.replace(item.handler, item_stage="sent", items=lambda command: ["good", bad])
    engine = dataclasses.replace(engine, codec=Decoded(), handlers={handler.type: handler})  # type: ignore[arg-type]
    item.delivery.handler, item.delivery.envelope = handler, item.envelope
    found = prepared(item.delivery, engine)
    assert isinstance(found.outcome, Dead)
    assert found.outcome.reason == "bad_items"
    assert not found.counted


def test_what_the_engine_cannot_settle_is_charged_to_the_command_that_it_is_about(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    items, engine = group("abc")
    settled = settle.statements

    def statements(items_: Any, *arguments: Any) -> Any:
        if any(item is items[1] and isinstance(item.outcome, Done) for item in items_):
            raise TypeError("'<' not supported")
        return settled(items_, *arguments)

    monkeypatch.setattr(settle, "statements", statements)
    drive(run_group(items, engine, Mood()), items, lambda i, p: None)
    assert [type(item.outcome) for item in items] == [Done, Dead, Done]


def test_what_it_cannot_settle_even_as_a_failure_is_stored_without_its_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    items, engine = group("ab")
    settled = settle.statements

    def statements(items_: Any, *arguments: Any) -> Any:
        if any(item is items[0] and item.envelope is not None for item in items_):
            raise TypeError("'<' not supported")
        return settled(items_, *arguments)

    monkeypatch.setattr(settle, "statements", statements)
    drive(run_group(items, engine, Mood()), items, lambda i, p: None)
    assert isinstance(items[0].outcome, Dead)
    assert items[0].outcome.reason == "unstorable"
    assert items[1].outcome == Done()
