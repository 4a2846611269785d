"""A log line has an event's own fields only, the trace, and never a payload or a whole key."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any, Literal
from uuid import UUID

import pytest
import structlog

from onceward_runtime import events, log, tracing
from onceward_runtime.settings import Settings

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    target = io.StringIO()
    log.configure(Settings(log_format="json", log_level="info"), target)
    yield target
    root.handlers[:], root.level = handlers, level
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_names_the_command_and_hashes_its_key(stream: io.StringIO) -> None:
    identity = UUID("0199e3a0-0000-7000-8000-000000000001")
    log.emit(events.COMMAND_PARKED, command_id=identity, type="hr.Apply", key="employee-7", attempt=2, reason="held")
    (line,) = lines(stream)
    assert line["event"] == "command.parked"
    assert line["command_id"] == str(identity)
    assert line["attempt"] == 2
    assert line["level"] == "info"
    assert line["key"] == log.key_hash("employee-7") == log.key_hash(b"employee-7")
    assert "employee-7" not in stream.getvalue()


def test_an_unknown_field_is_refused(stream: io.StringIO) -> None:
    with pytest.raises(TypeError, match=r"command\.duplicate has no field payload"):
        log.emit(events.COMMAND_DUPLICATE, payload=b"x")
    assert lines(stream) == []


def test_a_value_of_another_kind_is_not_shown(stream: io.StringIO) -> None:
    log.emit(events.COMMAND_PARKED, reason={"salary": 1})
    log.emit(events.COMMAND_PARKED, reason=b"salary")
    assert "salary" not in stream.getvalue()


def test_an_exception_is_its_type_and_first_line(stream: io.StringIO) -> None:
    log.emit(events.SERVICE_DIED, service="relay", error=ValueError("broken\nDETAIL: row (4711)"))
    (line,) = lines(stream)
    assert line["error"] == "ValueError: broken"


def test_lines_below_the_level_are_not_written(stream: io.StringIO) -> None:
    log.emit(events.COMMAND_DUPLICATE, type="t")
    assert lines(stream) == []


def test_a_line_carries_the_trace(stream: io.StringIO) -> None:
    with tracing.attached(TRACEPARENT):
        log.emit(events.SERVICE_STARTED, service="worker")
    log.emit(events.SERVICE_STARTED, service="worker")
    inside, outside = lines(stream)
    assert inside["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert "trace_id" not in outside


def test_lines_of_libraries_have_the_same_form(stream: io.StringIO) -> None:
    logging.getLogger("onceward.kafka").warning("broker %s is away", "b:1")
    (line,) = lines(stream)
    assert line["event"] == "broker b:1 is away"
    assert line["logger"] == "onceward.kafka"


def test_extra_fields_of_libraries_are_shown(stream: io.StringIO) -> None:
    logging.getLogger("service").info("charged", extra={"order": 7, "level": "mine"})
    (line,) = lines(stream)
    assert (line["event"], line["order"], line["level"]) == ("charged", 7, "info")


def test_the_console_form_is_readable(stream: io.StringIO) -> None:
    log.configure(Settings(log_format="console"), stream)
    log.emit(events.SERVICE_STARTED, service="worker")
    assert "service.started" in stream.getvalue()
    assert "service=worker" in stream.getvalue()


def test_a_traceback_shows_no_values_of_variables(stream: io.StringIO) -> None:
    log.configure(Settings(log_format="console"), stream)
    salary = f"salary-{4700 + 11}"  # which the source does not show
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("service").exception("failed")
    assert "ValueError: broken" in stream.getvalue()
    assert salary not in stream.getvalue()


def test_libraries_speak_from_warning_on_unless_all_is_wanted(stream: io.StringIO) -> None:
    def said(level: Literal["debug", "info", "error"]) -> list[str]:
        stream.truncate(0)
        stream.seek(0)
        log.configure(Settings(log_format="json", log_level=level), stream)
        for name in ("httpx", "httpx2", "onceward.kafka", "app"):
            logging.getLogger(name).info("info while %s", level)
            logging.getLogger(name).warning("warning while %s", level)  # librdkafka's are passed on once in a while
        return [f"{line['level']} of {line['logger']}" for line in lines(stream)]

    warnings = ["warning of httpx", "warning of httpx2", "warning of onceward.kafka"]
    assert said("info") == [*warnings, "info of app", "warning of app"]
    assert len(said("debug")) == 8
    assert said("error") == []
