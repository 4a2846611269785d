"""A command becomes one row, or an error that names the field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest

from onceward_producer.options import MAX_TEXT_BYTES, PublishOptions, RowOptions
from onceward_producer.rows import OutboxRow, arrays, draft, draft_arrays, row
from onceward_runtime.tracing import attached
from onceward_schemas import headers
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.envelope import Context
from onceward_schemas.errors import InvalidCommandError, TopicNameError

_NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
_TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _schema(key: str | None = "employee", lane: str = "hr.bulk") -> CommandSchema:
    return CommandSchema(name="hr.Move", version=3, lane=lane, key=key, aggregate="employee", avro={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Command):
    SCHEMA: ClassVar[CommandSchema] = _schema()
    employee: Any


class Codec:
    def encode(self, command: Command) -> bytes:
        return b"payload"


class Grade(Enum):
    SENIOR = "senior"


def test_the_row_has_the_types_lane_key_and_version() -> None:
    made = row(Move(employee="7"), Codec())
    assert made == OutboxRow(made.id, "employee", "7", "hr.Move", b"payload", "hr.bulk", 3)
    assert made.id.version == 7


def test_ids_grow_with_each_row() -> None:
    ids = [row(Move(employee="7"), Codec()).id for _ in range(1000)]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("Zoë", "Zoë"),
        ("", ""),
        (-7, "-7"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Grade.SENIOR, "senior"),
        (None, None),
        ("k" * MAX_TEXT_BYTES, "k" * MAX_TEXT_BYTES),
    ],
)
def test_the_key_is_the_fields_value_as_text(value: Any, text: str | None) -> None:
    assert row(Move(employee=value), Codec()).aggregateid == text


def test_a_type_without_a_key_has_a_null_key() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Keyless(Command):
        SCHEMA: ClassVar[CommandSchema] = _schema(key=None)

    assert row(Keyless(), Codec()).aggregateid is None


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ("k" * (MAX_TEXT_BYTES + 1), "takes 1,025 bytes; the cap is 1,024"),
        ("ö" * (MAX_TEXT_BYTES // 2 + 1), "takes 1,026 bytes"),
        ("a\0b", "holds a NUL"),
        ("\ud800", "surrogate"),
        (1.5, "is the key and of type float"),
        (True, "is the key and of type bool"),
        (b"7", "is the key and of type bytes"),
    ],
)
def test_a_key_that_kafka_or_postgresql_would_refuse_is_refused_by_name(value: Any, complaint: str) -> None:
    with pytest.raises(InvalidCommandError, match=complaint) as caught:
        row(Move(employee=value), Codec())
    assert caught.value.field == "employee"
    assert str(caught.value).startswith("employee ")
    assert caught.value.remedy


@pytest.mark.parametrize("value", [object(), Move, "hr.Move", None])
def test_what_is_not_a_command_is_refused(value: Any) -> None:
    with pytest.raises(InvalidCommandError, match="is not a command"):
        row(value, Codec())


def test_a_lane_that_is_not_a_topic_name_is_refused() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Astray(Command):
        SCHEMA: ClassVar[CommandSchema] = _schema(key=None, lane="hr bulk")

    with pytest.raises(TopicNameError):
        row(Astray(), Codec())


def test_the_options_are_columns_or_part_of_the_context() -> None:
    run, cause = uuid4(), uuid4()
    texts = {name: f"the {name}" for name in _text_options() if name not in ("tenant", "dedupe_key")}
    made = row(
        Move(employee="7"), Codec(), tenant="north", run_id=run, sequence=4, deadline=_NOON, causation=cause, **texts
    )
    assert (made.tenant, made.run_id) == ("north", run)
    expected = Context(sequence=4, deadline=_NOON, causation_id=cause, **texts)  # type: ignore[arg-type]
    assert made.context == expected.to_json()
    assert Context.from_json(made.context) == expected


def test_not_before_travels_along() -> None:
    """A worker counts the command's age from it."""
    made = draft(Move(employee="7"), Codec(), not_before=_NOON)
    assert made.not_before == _NOON
    assert Context.from_json(made.row.context) == Context(not_before=_NOON)


def test_an_option_that_is_none_is_as_if_left_out() -> None:
    made = draft(
        Move(employee="7"), Codec(), tenant=None, item=None, dedupe_key=None, dedupe_window=None, not_before=None
    )
    assert (made.plain, made.row.tenant, made.row.context) == (True, None, None)


def test_every_option_is_checked() -> None:
    """A new option without a check would be refused as unknown."""
    wrong: Any = object()
    for name in PublishOptions.__optional_keys__:
        with pytest.raises(InvalidCommandError, match=f"^{name} "):
            draft(Move(employee="7"), Codec(), **{name: wrong})


@pytest.mark.parametrize("name", sorted({"tenant", "item", "dedupe_key", "idempotency_key"}))
@pytest.mark.parametrize("value", ["", "\0", "\ud800", "t" * 1025, 7])
def test_text_that_no_header_can_hold_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidCommandError) as caught:
        draft(Move(employee="7"), Codec(), **{name: value})
    assert caught.value.field == name


@pytest.mark.parametrize("name", ["deadline", "not_before"])
def test_an_instant_without_a_time_zone_is_refused(name: str) -> None:
    naive: Any = datetime(2026, 3, 1)
    with pytest.raises(InvalidCommandError, match=f"^{name} has no time zone"):
        draft(Move(employee="7"), Codec(), **{name: naive})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"dedupe_window": timedelta(hours=1)}, "dedupe_window is given without dedupe_key"),
        ({"dedupe_key": "7", "dedupe_window": timedelta(0)}, "dedupe_window is 0:00:00"),
        ({"dedupe_key": "7", "dedupe_window": timedelta(days=9999)}, "dedupe_window is 9999 days"),
        ({"deadline": _NOON, "not_before": _NOON}, "deadline is not after not_before"),
        ({"sequence": 2**63}, "sequence is not a 64-bit"),
        ({"sequence": True}, "sequence is not a 64-bit"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: PublishOptions, complaint: str) -> None:
    with pytest.raises(InvalidCommandError, match=complaint):
        draft(Move(employee="7"), Codec(), **options)


def test_a_misspelt_option_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(TypeError, match=r"'dedup_key' is not an option.*'dedupe_key'"):
        draft(Move(employee="7"), Codec(), dedup_key="7")  # type: ignore[call-arg]


@pytest.mark.parametrize("name", sorted(PublishOptions.__optional_keys__ - RowOptions.__optional_keys__))
def test_a_mere_row_refuses_what_it_cannot_carry(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        row(Move(employee="7"), Codec(), **{name: "x"})  # type: ignore[arg-type]


def test_the_trace_that_is_under_way_travels_with_the_command() -> None:
    with attached(_TRACEPARENT, "vendor=1"):
        made = row(Move(employee="7"), Codec())
    assert made.traceparent == _TRACEPARENT
    assert json.loads(made.context or "") == {"tracestate": "vendor=1"}
    assert row(Move(employee="7"), Codec()).traceparent is None


def test_arrays_are_the_columns() -> None:
    rows = [row(Move(employee=str(number)), Codec()) for number in range(3)]
    assert arrays(rows)[2] == ["0", "1", "2"]
    assert [tuple(each) for each in zip(*arrays(rows), strict=True)] == rows
    assert arrays([]) == [[]] * 12
    assert len(draft_arrays([])) == len(draft_arrays([draft(Move(employee="7"), Codec())])) == 15


def test_the_row_has_a_column_for_each_header() -> None:
    assert set(headers.ALL) <= set(OutboxRow._fields)


def _text_options() -> list[str]:
    return [name for name, hint in RowOptions.__annotations__.items() if "str" in str(hint)]
