"""Single values, without parts: checked and made plain, and made again from the plain ones that fastavro reads."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from enum import Enum as PythonEnum
from typing import Any, TypeAlias
from uuid import UUID

Convert: TypeAlias = Callable[[Any], Any]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_ONE = date(1970, 1, 1).toordinal()
_LEAST = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_MOST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_RANGES = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}
_FLOAT = struct.Struct("<f")
_DIGITS = 4000  # Python refuses to read longer numbers


class MismatchError(Exception):
    """A value does not fit its type; `path` says where, outermost first."""

    def __init__(self, expected: str, value: Any, path: str = "") -> None:
        self.expected = expected
        self.value = value
        self.path = path
        super().__init__(expected)

    def within(self, step: str) -> MismatchError:
        """The same, seen from one level further out."""
        joint = "." if self.path and not self.path.startswith(("[", "{")) else ""
        return MismatchError(self.expected, self.value, f"{step}{joint}{self.path}")


TYPES: dict[tuple[str, str | None], type[Any]] = {
    ("null", None): type(None),
    ("boolean", None): bool,
    ("int", None): int,
    ("long", None): int,
    ("float", None): float,
    ("double", None): float,
    ("bytes", None): bytes,
    ("string", None): str,
    ("string", "uuid"): UUID,
    ("int", "date"): date,
    ("int", "time-millis"): time,
    ("long", "time-micros"): time,
    ("long", "timestamp-millis"): datetime,
    ("long", "timestamp-micros"): datetime,
}
LOGICAL = frozenset(key for key in TYPES if key[1]) | {("bytes", "decimal"), ("fixed", "decimal"), ("fixed", "uuid")}
"""Every pair of Avro type and logical type that commands may use."""


def _instance(value: Any, wanted: type[Any], expected: str) -> Any:
    if not isinstance(value, wanted):
        raise MismatchError(expected, value)
    return value


def _boolean(value: Any) -> bool:
    if value is not True and value is not False:
        raise MismatchError("True or False", value)
    return bool(value)


def _null(value: Any) -> None:
    if value is not None:
        raise MismatchError("None", value)


def _integer(kind: str) -> Convert:
    least, most = _RANGES[kind]
    expected = f"an int from {least} to {most}"

    def convert(value: Any) -> int:
        if type(value) is not int:
            if not isinstance(value, int) or isinstance(value, bool):
                raise MismatchError(expected, value)
            value = int(value)
        if not least <= value <= most:
            raise MismatchError(expected, value)
        return int(value)

    return convert


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            exact = float(value)
        except OverflowError:
            exact = 0.0
        if isinstance(value, float) or exact == value:
            return exact
    raise MismatchError("a float, or an int that a float holds exactly", value)


def _float(value: Any) -> float:
    number = _double(value)
    try:
        _FLOAT.pack(number)
    except OverflowError:
        raise MismatchError("a float that fits 32 bits", value) from None
    return number


def _string(value: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, str) and not isinstance(value, PythonEnum):
        return str.__str__(value)
    raise MismatchError("a str", value)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise MismatchError("bytes", value)
    return bytes(value)


def fixed_to_plain(size: int) -> Convert:
    def convert(value: Any) -> bytes:
        if not isinstance(value, bytes) or len(value) != size:
            raise MismatchError(f"exactly {size} bytes", value)
        return bytes(value)

    return convert


def _uuid(value: Any) -> str:
    return str(_instance(value, UUID, "a UUID"))


def uuid_bytes(value: Any) -> bytes:
    found: UUID = _instance(value, UUID, "a UUID")
    return found.bytes


def _date(value: Any) -> int:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise MismatchError("a date (and not a datetime)", value)
    return value.toordinal() - _DAY_ONE


def _time_micros(value: Any) -> int:
    if not isinstance(value, time) or value.tzinfo is not None:
        raise MismatchError("a time without a time zone", value)
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond


def _time_millis(value: Any) -> int:
    return _to_millis(_time_micros(value), value)


def _timestamp_micros(value: Any) -> int:
    if isinstance(value, datetime):
        try:
            passed = value - EPOCH
        except TypeError:
            raise MismatchError("a datetime with a time zone, for instance datetime.now(UTC)", value) from None
        micros = (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
        if _LEAST <= micros <= _MOST:
            return micros
    raise MismatchError("a datetime with a time zone, in the years 1 to 9999 of UTC", value)


def _timestamp_millis(value: Any) -> int:
    return _to_millis(_timestamp_micros(value), value)


def _to_millis(micros: int, value: Any) -> int:
    millis, rest = divmod(micros, 1000)
    if rest:
        raise MismatchError("whole milliseconds (round the value, or use the -micros type)", value)
    return millis


def decimal_to_plain(precision: int, scale: int, size: int | None) -> Convert:
    expected = f"a Decimal of at most {precision} digits, {scale} of them after the point"
    limit = 10**precision

    def convert(value: Any) -> bytes:
        if not isinstance(value, Decimal):
            raise MismatchError(expected, value)
        sign, digits, exponent = value.as_tuple()
        if not isinstance(exponent, int):
            raise MismatchError(expected + ", finite", value)
        shift = exponent + scale
        if len(digits) > _DIGITS or (shift > precision and any(digits)):
            raise MismatchError(expected, value)
        whole = int("".join(map(str, digits)))
        if shift >= 0:
            whole *= 10 ** min(shift, precision)
        else:
            whole, rest = divmod(whole, 10 ** min(-shift, len(digits)))
            if rest:
                raise MismatchError(expected, value)
        if whole >= limit:
            raise MismatchError(expected, value)
        signed = -whole if sign else whole
        encoded: bytes = signed.to_bytes(size or (signed.bit_length() + 8) // 8, "big", signed=True)
        return encoded

    return convert


def decimal_from_plain(precision: int, scale: int) -> Convert:
    limit = 10**precision
    context = Context(prec=max(precision, 1))

    def convert(value: bytes) -> Decimal:
        whole = int.from_bytes(value, "big", signed=True)
        if not -limit < whole < limit:
            raise ValueError(f"a decimal of more than {precision} digits")
        return Decimal(whole).scaleb(-scale, context)

    return convert


def _timestamp_from_micros(value: int) -> datetime:
    return EPOCH + timedelta(microseconds=value)


def _timestamp_from_millis(value: int) -> datetime:
    return EPOCH + timedelta(milliseconds=value)


def _time_from_micros(value: int) -> time:
    if not 0 <= value < 86_400_000_000:
        raise ValueError("a time beyond the day")
    return (datetime.min + timedelta(microseconds=value)).time()


def _time_from_millis(value: int) -> time:
    return _time_from_micros(value * 1000)


def _date_from_days(value: int) -> date:
    return date.fromordinal(value + _DAY_ONE)


PRIMITIVE_TO_PLAIN: dict[str, Convert] = {
    "null": _null,
    "boolean": _boolean,
    "int": _integer("int"),
    "long": _integer("long"),
    "float": _float,
    "double": _double,
    "bytes": _bytes,
    "string": _string,
}
LOGICAL_TO_PLAIN: dict[tuple[str, str | None], Convert] = {
    ("string", "uuid"): _uuid,
    ("int", "date"): _date,
    ("int", "time-millis"): _time_millis,
    ("long", "time-micros"): _time_micros,
    ("long", "timestamp-millis"): _timestamp_millis,
    ("long", "timestamp-micros"): _timestamp_micros,
}
LOGICAL_FROM_PLAIN: dict[tuple[str, str | None], Convert] = {
    ("string", "uuid"): UUID,
    ("int", "date"): _date_from_days,
    ("int", "time-millis"): _time_from_millis,
    ("long", "time-micros"): _time_from_micros,
    ("long", "timestamp-millis"): _timestamp_from_millis,
    ("long", "timestamp-micros"): _timestamp_from_micros,
}
