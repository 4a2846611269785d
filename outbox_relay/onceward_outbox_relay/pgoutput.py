"""Reads PostgreSQL's logical replication messages (pgoutput, protocol 1, binary values). Pure: bytes in, values out.

Source: PostgreSQL documentation, "Logical Replication Message Formats". The insert path is written for speed: it takes the
offset of the message inside the copy data, and returns raw values that `to_text` converters turn into record bytes.
"""

from __future__ import annotations

import struct
from binascii import hexlify
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

BEGIN: Final = ord("B")
COMMIT: Final = ord("C")
RELATION: Final = ord("R")
INSERT: Final = ord("I")

_U32 = struct.Struct(">I").unpack_from
_U64 = struct.Struct(">Q").unpack_from
_NULL, _BINARY, _TEXT = ord("n"), ord("b"), ord("t")


class MalformedMessageError(ValueError):
    """PostgreSQL sent a replication message that cannot be read."""


class Text(bytes):
    """A value that the server sent as text although binary was asked for; it needs no conversion."""


class Column(NamedTuple):
    name: str
    type_oid: int


class Relation(NamedTuple):
    oid: int
    schema: str
    table: str
    columns: tuple[Column, ...]


def commit_end_lsn(message: bytes, at: int = 0) -> int:
    """Where the log goes on after a Commit: the position that acknowledges its transaction."""
    if len(message) != at + 26:
        raise MalformedMessageError(f"A Commit message of {len(message) - at} bytes; 26 were expected.")
    lsn: int = _U64(message, at + 10)[0]
    return lsn


def relation(message: bytes, at: int = 0) -> Relation:
    """Read a Relation message: the columns of the Insert messages that follow it, in order."""
    try:
        oid = _U32(message, at + 1)[0]
        end = message.index(0, at + 5)
        schema = message[at + 5 : end].decode() or "pg_catalog"
        start, end = end + 1, message.index(0, end + 1)
        table = message[start:end].decode()
        count = int.from_bytes(message[end + 2 : end + 4])
        position = end + 4
        columns = []
        for _ in range(count):
            end = message.index(0, position + 1)
            columns.append(Column(message[position + 1 : end].decode(), _U32(message, end + 1)[0]))
            position = end + 9
    except (IndexError, ValueError, struct.error) as error:
        raise MalformedMessageError(f"A Relation message that cannot be read: {error}.") from error
    if position != len(message):
        raise MalformedMessageError(f"A Relation message of {len(message)} bytes; {position} were expected.")
    return Relation(oid, schema, table, tuple(columns))


def insert_values(message: bytes, at: int = 0) -> list[bytes | None]:
    """The column values of an Insert message, in the relation's order: raw binary, `Text`, or None."""
    values: list[bytes | None] = []
    add = values.append
    position = at + 8
    try:
        if message[at + 5] != 78:  # N: a new tuple follows
            raise MalformedMessageError("An Insert message without a new row.")
        for _ in range(message[at + 6] << 8 | message[at + 7]):
            kind = message[position]
            if kind == _BINARY:
                start = position + 5
                position = start + _U32(message, position + 1)[0]
                add(message[start:position])
            elif kind == _NULL:
                add(None)
                position += 1
            elif kind == _TEXT:
                start = position + 5
                position = start + _U32(message, position + 1)[0]
                add(Text(message[start:position]))
            else:
                raise MalformedMessageError(f"An Insert message with a value of kind {chr(kind)!r}.")
    except (IndexError, struct.error) as error:
        raise MalformedMessageError(f"An Insert message that ends early, at byte {len(message)}.") from error
    if position != len(message):
        raise MalformedMessageError(f"An Insert message of {len(message)} bytes; {position} were expected.")
    return values


# Converters: binary value -> bytes as Debezium spells the type in a header.

ToText = Callable[[bytes], bytes]
_split_uuid = struct.Struct("8s4s4s4s12s").unpack
_join = b"-".join
_integers: dict[bytes, bytes] = {}
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)


def _uuid(value: bytes) -> bytes:
    if type(value) is Text:
        return value
    text: bytes = _join(_split_uuid(hexlify(value)))
    return text


def _integer(value: bytes) -> bytes:
    if type(value) is Text:
        return value
    text = _integers.get(value)
    if text is None:
        text = b"%d" % int.from_bytes(value, "big", signed=True)
        if len(_integers) < 4096:
            _integers[value] = text
    return text


def _boolean(value: bytes) -> bytes:
    if type(value) is Text:
        return b"true" if value == b"t" else b"false"
    if len(value) != 1:
        raise MalformedMessageError(f"A bool of {len(value)} bytes.")
    return b"true" if value[0] else b"false"


def _jsonb(value: bytes) -> bytes:
    if type(value) is Text:
        return value
    if value[:1] != b"\x01":
        raise MalformedMessageError("A jsonb value of an unknown version.")
    return value[1:]


def _timestamptz(value: bytes) -> bytes:
    """ISO in UTC, fractions without trailing zeros."""
    if type(value) is Text:
        return value
    instant = _EPOCH + int.from_bytes(value, "big", signed=True) * _US
    text: bytes = instant.strftime("%Y-%m-%dT%H:%M:%S").encode()
    if instant.microsecond:
        text += b".%06d" % instant.microsecond
    return text + b"Z"


def _timestamp(value: bytes) -> bytes:
    """Microseconds since 1970."""
    if type(value) is Text:
        return value
    return b"%d" % (int.from_bytes(value, "big", signed=True) + 946_684_800_000_000)


def _date(value: bytes) -> bytes:
    """Days since 1970."""
    if type(value) is Text:
        return value
    return b"%d" % (int.from_bytes(value, "big", signed=True) + 10_957)


def _numeric(value: bytes) -> bytes:
    """Decimal text with the column's scale."""
    if type(value) is Text:
        return value
    if len(value) < 8 or len(value) % 2:
        raise MalformedMessageError(f"A numeric of {len(value)} bytes.")
    count, weight, sign, scale = struct.unpack_from(">hhHh", value)
    if sign not in (0, 0x4000) or len(value) != 8 + 2 * count:
        raise MalformedMessageError("A numeric that is not a finite number.")
    digits = struct.unpack_from(f">{count}h", value, 8)
    whole = "".join(f"{digits[i] if i < count else 0:04d}" for i in range(weight + 1)).lstrip("0") or "0"
    groups = [0] * max(0, -weight - 1) + list(digits[max(0, weight + 1) :])
    fraction = "".join(f"{group:04d}" for group in groups)[:scale].ljust(scale, "0")
    text = ("-" if sign else "") + whole + ("." + fraction if scale else "")
    return text.encode()


_TO_TEXT: dict[int, ToText | None] = {
    16: _boolean,
    17: None,
    20: _integer,
    21: _integer,
    23: _integer,
    18: None,
    19: None,
    25: None,
    114: None,
    1042: None,
    1043: None,
    1082: _date,
    1114: _timestamp,
    1184: _timestamptz,
    1700: _numeric,
    2950: _uuid,
    3802: _jsonb,
}
_FIRST_OWN_TYPE = 16384


def supports(type_oid: int) -> bool:
    """Whether values of a column type can become part of a record."""
    return type_oid in _TO_TEXT or type_oid >= _FIRST_OWN_TYPE


def to_text(type_oid: int) -> ToText | None:
    """The converter of a column type, or None where the binary form is the text already.

    Types made by the user (enums, domains over text) are taken as text.
    """
    return _TO_TEXT.get(type_oid)
