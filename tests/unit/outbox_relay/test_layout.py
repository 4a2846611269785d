"""A table's columns are found by name, and a table that does not fit is refused with the column's name."""

from __future__ import annotations

import pytest

from onceward_outbox_relay.layout import Layout, plan
from onceward_outbox_relay.pgoutput import Column
from onceward_schemas.errors import DatabaseError
from onceward_schemas.headers import ALL

OURS = [
    Column("seq", 20),
    Column("id", 2950),
    Column("aggregatetype", 25),
    Column("aggregateid", 25),
    Column("type", 25),
    Column("payload", 17),
    Column("topic", 25),
    Column("version", 23),
    Column("attempt", 23),
    Column("tenant", 25),
    Column("run_id", 2950),
    Column("traceparent", 25),
    Column("context", 25),
]


def test_our_table_gives_the_headers_of_the_contract_in_order() -> None:
    found = plan(Layout(), OURS)
    assert found.names == ALL
    assert [OURS[h.position].name for h in found.headers] == list(ALL)
    assert OURS[found.topic.position].name == "topic"


def test_columns_may_stand_in_any_order() -> None:
    turned = list(reversed(OURS))
    assert plan(Layout(), turned).pick(list(range(len(turned)))) == tuple(  # type: ignore[arg-type, comparison-overlap]
        [c.name for c in turned].index(name) for name in ALL
    )


def test_one_header_is_a_tuple_too() -> None:
    assert plan(Layout(headers=(("id", "id"),)), OURS).pick([b"%d" % i for i in range(len(OURS))]) == (b"1",)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(DatabaseError, match="'run_id'"):
        plan(Layout(), [column for column in OURS if column.name != "run_id"])


def test_a_column_that_no_record_can_carry_is_named() -> None:
    with pytest.raises(DatabaseError, match="'where'"):
        plan(Layout(headers=(("where", "where"),)), [*OURS, Column("where", 600)])
