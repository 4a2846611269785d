"""The decoder reads what PostgreSQL writes, and says so when it cannot."""

from __future__ import annotations

import contextlib
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward_outbox_relay import pgoutput
from onceward_outbox_relay.pgoutput import Column, MalformedMessageError, Relation, Text

Value = bytes | None
values = st.lists(st.none() | st.binary(max_size=300) | st.binary(max_size=50).map(Text), max_size=40)
names = st.text('abc_09äß日 ."', min_size=1, max_size=20)


def insert(row: list[Value], oid: int = 7) -> bytes:
    """As PostgreSQL writes it."""
    parts = [b"I", struct.pack(">I", oid), b"N", struct.pack(">H", len(row))]
    for value in row:
        if value is None:
            parts.append(b"n")
        else:
            parts += [b"t" if type(value) is Text else b"b", struct.pack(">I", len(value)), value]
    return b"".join(parts)


def relation(described: Relation) -> bytes:
    parts = [
        b"R",
        struct.pack(">I", described.oid),
        described.schema.encode() + b"\0",
        described.table.encode() + b"\0d",
    ]
    parts.append(struct.pack(">H", len(described.columns)))
    for column in described.columns:
        parts.append(b"\1" + column.name.encode() + b"\0" + struct.pack(">Ii", column.type_oid, -1))
    return b"".join(parts)


@given(values, st.binary(max_size=30))
def test_an_insert_gives_back_its_values_wherever_it_begins(row: list[Value], before: bytes) -> None:
    read = pgoutput.insert_values(before + insert(row), len(before))
    assert read == row
    assert [type(value) for value in read] == [type(value) for value in row]


@given(values, st.data())
def test_an_insert_that_is_cut_short_or_too_long_is_an_error(row: list[Value], data: st.DataObject) -> None:
    message = insert(row)
    cut = data.draw(st.integers(1, len(message) - 1))
    with pytest.raises(MalformedMessageError):
        pgoutput.insert_values(message[:cut])
    with pytest.raises(MalformedMessageError):
        pgoutput.insert_values(message + b"\0")


@given(st.binary(max_size=200))
def test_noise_gives_values_or_the_one_error(noise: bytes) -> None:
    for read in (pgoutput.insert_values, pgoutput.relation, pgoutput.commit_end_lsn):
        with contextlib.suppress(MalformedMessageError):
            read(noise)


@given(st.integers(0, 2**32 - 1), names, names, st.lists(st.tuples(names, st.integers(0, 2**32 - 1)), max_size=20))
def test_a_relation_gives_back_its_columns(oid: int, schema: str, table: str, columns: list[tuple[str, int]]) -> None:
    described = Relation(oid, schema, table, tuple(Column(*column) for column in columns))
    message = relation(described)
    assert pgoutput.relation(b"xx" + message, 2) == described
    for cut in range(1, len(message)):
        with pytest.raises(MalformedMessageError):
            pgoutput.relation(message[:cut])


@given(st.integers(0, 2**64 - 1))
def test_a_commit_gives_its_position(lsn: int) -> None:
    assert pgoutput.commit_end_lsn(b"C" + struct.pack(">BQQq", 0, 1, lsn, 5)) == lsn


def text(oid: int, value: bytes) -> bytes:
    convert = pgoutput.to_text(oid)
    return value if convert is None else convert(value)


@given(st.uuids())
def test_a_uuid_is_spelled_without_quotes(value: UUID) -> None:
    assert text(2950, value.bytes) == str(value).encode()
    assert text(2950, Text(str(value).encode())) == str(value).encode()


@given(st.sampled_from([(21, 2), (23, 4), (20, 8)]), st.data())
def test_an_integer_is_decimal_however_it_was_sent(kind: tuple[int, int], data: st.DataObject) -> None:
    oid, size = kind
    value = data.draw(st.integers(-(2 ** (8 * size - 1)), 2 ** (8 * size - 1) - 1))
    assert text(oid, value.to_bytes(size, signed=True)) == b"%d" % value
    assert text(oid, Text(b"1234")) == b"1234"  # the same bytes as a binary int4


@given(st.datetimes(datetime(1900, 1, 1), datetime(2999, 1, 1)))
def test_instants_and_days_are_spelled_as_debezium_does(naive: datetime) -> None:
    instant = naive.replace(tzinfo=UTC)
    since_2000 = (instant - datetime(2000, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    spelled = text(1184, since_2000.to_bytes(8, signed=True)).decode()
    assert spelled.endswith("Z")
    assert datetime.fromisoformat(spelled) == instant
    since_1970 = (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert text(1114, since_2000.to_bytes(8, signed=True)) == b"%d" % since_1970
    days = (naive.date() - date(2000, 1, 1)).days
    assert text(1082, days.to_bytes(4, signed=True)) == b"%d" % (naive.date() - date(1970, 1, 1)).days


@given(st.decimals(min_value=-(10**12), max_value=10**12, allow_nan=False, places=6))
def test_a_numeric_keeps_its_scale(value: Decimal) -> None:
    assert text(1700, numeric(value, 6)) == f"{value:.6f}".replace("-0.000000", "0.000000").encode()


def numeric(value: Decimal, scale: int) -> bytes:
    """The binary form: groups of four decimal digits."""
    whole, _, fraction = f"{abs(value):.{scale}f}".partition(".")
    whole = whole.zfill(-(-len(whole) // 4) * 4)
    fraction = fraction.ljust(-(-len(fraction) // 4) * 4, "0")
    groups = [int(part[i : i + 4]) for part in (whole, fraction) for i in range(0, len(part), 4)]
    weight = len(whole) // 4 - 1
    while groups and groups[0] == 0:
        groups.pop(0)
        weight -= 1
    while groups and groups[-1] == 0:
        groups.pop()
    negative = value < 0 and bool(groups)
    head = struct.pack(">hhHH", len(groups), weight if groups else 0, 0x4000 if negative else 0, scale)
    return head + struct.pack(f">{len(groups)}h", *groups)


def test_json_and_bool_are_verbatim() -> None:
    assert text(3802, b'\x01{"a": 1}') == b'{"a": 1}'
    assert text(114, b'{"a" :1}') == b'{"a" :1}'
    assert (text(16, b"\1"), text(16, b"\0"), text(16, Text(b"t"))) == (b"true", b"false", b"true")


@pytest.mark.parametrize(
    ("oid", "value"), [(2950, b"short"), (3802, b"\x02{}"), (16, b""), (1700, b"123"), (1184, b"x" * 20)]
)
def test_a_value_that_its_type_cannot_have_is_an_error(oid: int, value: bytes) -> None:
    with pytest.raises((MalformedMessageError, OverflowError, struct.error)):
        text(oid, value)


def test_a_type_that_no_record_can_carry_is_known_beforehand() -> None:
    assert not pgoutput.supports(600)  # point
    assert pgoutput.supports(2950)
    assert pgoutput.supports(16_400)  # an enum of the user's
