"""A value that does not fit is refused when the command is encoded, with the field's path and the type it should have.

Among them are those that fastavro takes silently: booleans for numbers, naive datetimes, strings for bytes.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from onceward_schemas.codec import Codec
from onceward_schemas.errors import InvalidCommandError, PayloadTooLargeError, SchemaMissingError
from onceward_testing.registry import MemoryRegistry
from tests.support.charges import charge
from tests.support.commands import Channel, Charge, Increment, Line, Payer

CODEC = Codec(MemoryRegistry(Charge, Increment), [Charge, Increment])

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("order_id", {"order_id": str(uuid4())}, "UUID"),
    ("amount", {"amount": 5}, "Decimal of at most 12 digits"),
    ("amount", {"amount": 5.0}, "Decimal"),
    ("amount", {"amount": "5"}, "Decimal"),
    ("amount", {"amount": Decimal("0.001")}, "2 of them after the point"),
    ("amount", {"amount": Decimal(10000000000)}, "at most 12 digits"),
    ("amount", {"amount": Decimal("1E+10")}, "at most 12 digits"),
    ("amount", {"amount": Decimal("1E+999999")}, "at most 12 digits"),
    ("amount", {"amount": Decimal("1E-999999")}, "2 of them after the point"),
    ("amount", {"amount": Decimal("NaN")}, "finite"),
    ("amount", {"amount": Decimal("-Infinity")}, "finite"),
    ("fee", {"fee": Decimal("1E+15")}, "at most 18 digits"),
    ("booked_at", {"booked_at": datetime(2026, 1, 1)}, "time zone"),
    ("booked_at", {"booked_at": 1_700_000_000}, "time zone"),
    ("booked_at", {"booked_at": date(2026, 1, 1)}, "time zone"),
    ("booked_at", {"booked_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-3)))}, "years 1 to 9999"),
    ("seen_at", {"seen_at": datetime(2026, 1, 1, microsecond=1, tzinfo=UTC)}, "whole milliseconds"),
    ("due", {"due": datetime(2026, 1, 1, tzinfo=UTC)}, "not a datetime"),
    ("due", {"due": "2026-01-01"}, "date"),
    ("opens", {"opens": time(8, tzinfo=UTC)}, "without a time zone"),
    ("opens", {"opens": time(8, 0, 0, 1)}, "whole milliseconds"),
    ("channel", {"channel": "CARD"}, "member of Channel"),
    ("payer", {"payer": None}, "Payer"),
    ("payer", {"payer": {"name": "Ada"}}, "Payer"),
    ("payer.name", {"payer": Payer(name=7)}, "str"),  # type: ignore[arg-type]
    ("payer.since", {"payer": Payer(name="Ada", since=datetime(2026, 1, 1))}, "date"),
    ("guarantor", {"guarantor": Line(text="a", price=Decimal(1))}, "Payer"),
    ("lines", {"lines": "ab"}, "tuple"),
    ("lines[1].price", {"lines": (Line(text="a", price=Decimal(1)), Line(text="b", price=None))}, "Decimal"),  # type: ignore[arg-type]
    ("labels{a}", {"labels": {"a": 1}}, "str"),
    ("labels", {"labels": {1: "a"}}, "keys are str"),
    ("labels", {"labels": [("a", "b")]}, "dict"),
    ("deadlines{x}", {"deadlines": {"x": datetime(2026, 1, 1)}}, "time zone"),
    ("signature", {"signature": "abc"}, "bytes"),
    ("signature", {"signature": bytearray(b"abc")}, "bytes"),
    ("checksum", {"checksum": b"abc"}, "exactly 4 bytes"),
    ("checksum", {"checksum": "abcd"}, "exactly 4 bytes"),
    ("ratio", {"ratio": "1"}, "float"),
    ("ratio", {"ratio": True}, "float"),
    ("ratio", {"ratio": 2**53 + 1}, "holds exactly"),
    ("ratio", {"ratio": 10**400}, "holds exactly"),
    ("weight", {"weight": 1e39}, "32 bits"),
    ("count", {"count": True}, "int"),
    ("count", {"count": 1.0}, "int"),
    ("count", {"count": "1"}, "int"),
    ("count", {"count": 2**31}, "int from"),
    ("urgent", {"urgent": 1}, "True or False"),
    ("urgent", {"urgent": None}, "True or False"),
    ("reference", {"reference": True}, "int"),
    ("reference", {"reference": 1.5}, "None or int or str"),
    ("reference", {"reference": 2**63}, "int from"),
    ("reference", {"reference": Payer(name="Ada")}, "Channel or Line"),
    ("reference[1]", {"reference": ("a", 1)}, "str"),
]


@pytest.mark.parametrize(("field", "change", "expected"), WRONG)
def test_a_wrong_value_is_refused_by_field(field: str, change: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidCommandError) as caught:
        CODEC.encode(charge(**change))
    assert caught.value.field == field
    assert f"test.Charge.{field} is " in caught.value.message
    assert caught.value.remedy is not None
    assert expected in caught.value.remedy


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("payer.name", {"payer": Payer(name="a\ud800")}),
        ("labels{a}", {"labels": {"a": "\udfff"}}),
        ("labels", {"labels": {"\udfff": "a"}}),
        ("reference[0]", {"reference": ("\ud800",)}),
    ],
)
def test_text_that_utf8_cannot_hold_is_refused_by_field(field: str, change: dict[str, Any]) -> None:
    with pytest.raises(InvalidCommandError, match="surrogates") as caught:
        CODEC.encode(charge(**change))
    assert (caught.value.field or "").startswith(field)


def test_an_error_never_shows_text_that_somebody_typed() -> None:
    with pytest.raises(InvalidCommandError) as caught:
        CODEC.encode(charge(amount="4111 1111 1111 1111"))
    assert "4111" not in str(caught.value)


def test_values_that_mean_the_same_are_taken() -> None:
    given = charge(amount=Decimal("1.500"), fee=Decimal("1E+2"), ratio=3, count=2**31 - 1, lines=[])
    decoded = CODEC.decode(CODEC.encode(given))
    assert decoded == charge(amount=Decimal("1.5"), fee=Decimal(100), ratio=3.0, count=2**31 - 1)


def test_a_datetime_of_another_zone_is_the_same_instant() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    decoded = CODEC.decode(CODEC.encode(charge(booked_at=noon)))
    assert isinstance(decoded, Charge)
    assert decoded.booked_at == noon
    assert decoded.booked_at.tzinfo is UTC


def test_a_command_over_the_cap_is_refused_with_its_size() -> None:
    codec = Codec(MemoryRegistry(Increment), max_bytes=1000)
    assert codec.encode(Increment(counter="a" * 980))
    with pytest.raises(PayloadTooLargeError, match=r"takes 1,\d\d\d bytes; the cap is 1,000.*pointer"):
        codec.encode(Increment(counter="a" * 1000))


def test_the_cap_is_just_under_a_megabyte_unless_said_otherwise() -> None:
    with pytest.raises(PayloadTooLargeError):
        CODEC.encode(Increment(counter="a" * 990_000))
    assert CODEC.encode(Increment(counter="a" * 950_000))


def test_what_is_not_a_command_is_refused() -> None:
    with pytest.raises(InvalidCommandError, match="Payer is not a command"):
        CODEC.encode(Payer(name="Ada"))  # type: ignore[arg-type]


def test_a_type_that_is_not_registered_is_refused_with_the_remedy() -> None:
    with pytest.raises(SchemaMissingError, match=r"test\.Increment.*onceward schemas register|Register") as caught:
        Codec(MemoryRegistry()).encode(Increment(counter="a"))
    assert "test.Increment" in caught.value.message


def test_an_enum_of_another_class_is_refused() -> None:
    from enum import StrEnum

    class Other(StrEnum):
        CARD = "CARD"

    with pytest.raises(InvalidCommandError, match="member of Channel"):
        CODEC.encode(charge(channel=Other.CARD))
    with pytest.raises(InvalidCommandError):
        CODEC.encode(Increment(counter=Channel.CARD))
