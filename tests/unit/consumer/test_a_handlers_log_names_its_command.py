"""What a handler logs carries its command's identity, in both formats, and takes fields as well as %-arguments."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog

from onceward_consumer.context import Context, HandlerContext
from onceward_runtime import log
from onceward_runtime.settings import Settings
from tests.unit.consumer.test_groups_find_the_culprit import group


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield io.StringIO()
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def context_of(form: Literal["json", "console"], stream: io.StringIO) -> Context:
    log.configure(Settings(log_format=form, log_level="info"), stream)
    [item], engine = group("a")
    item.attempt = 3
    return HandlerContext(item, engine, None)


def test_a_json_line_has_the_command_and_the_fields(stream: io.StringIO) -> None:
    ctx = context_of("json", stream)
    ctx.log.info("invoiced", order=1, name="Ann")
    ctx.log.warning("order %s of %d", "7", 9, state="late")
    ctx.log.debug("not at this level")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    identity = {"command_id": str(ctx.command_id), "type": "test.Increment", "attempt": 3, "logger": "onceward.handler"}
    assert first.items() >= ({"event": "invoiced", "order": 1, "name": "Ann", "level": "info"} | identity).items()
    assert second.items() >= ({"event": "order 7 of 9", "state": "late", "level": "warning"} | identity).items()
    assert "positional_args" not in second


def test_a_console_line_has_them_too(stream: io.StringIO) -> None:
    ctx = context_of("console", stream)
    ctx.log.info("invoiced %s", "now", order=1)
    for part in ("invoiced now", f"command_id={ctx.command_id}", "type=test.Increment", "attempt=3", "order=1"):
        assert part in stream.getvalue()


def test_arguments_that_do_not_fit_their_message_do_not_fail_the_handler(stream: io.StringIO) -> None:
    ctx = context_of("json", stream)
    ctx.log.info("order %d", "seven")
    ctx.log.info("no place", 7)  # noqa: PLE1205
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["order %d", "no place"]


def test_a_logger_can_be_bound_further_and_tells_exceptions(stream: io.StringIO) -> None:
    bound = context_of("json", stream).log.bind(order=7)
    try:
        raise KeyError("nope")
    except KeyError:
        bound.exception("failed")
    line = json.loads(stream.getvalue())
    assert (line["event"], line["order"], line["level"]) == ("failed", 7, "error")
    assert "KeyError: 'nope'" in line["exception"]
