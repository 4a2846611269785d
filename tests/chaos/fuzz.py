"""Records as no publisher of ours would write them: good ones, spoiled in every part, and noise; from a seed, and pure."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

Headers = list[tuple[str, str | bytes | None]]

IGNORED: Final = "fuzz.Ignored"
_KEYS: Final = 200
_ODD_KEYS: Final = 20
"""Few keys for what nobody can run yet, since such a record holds its key."""
_LONG: Final = (300, 10_000, 60_000)
_NUMBERS: Final = (
    b"0",
    b"-1",
    b"1.5",
    b"2147483647",
    b"99999999999999999999",
    b"\xd9\xa3",
    b" 7 ",
    b"1_0",
    b"2",
    b"9" * 5000,
)
_CONTEXTS: Final = (
    b"{",
    b"[]",
    b"null",
    b'{"deadline": "2001-01-01T00:00:00+00:00"}',
    b'{"deadline": "2099-01-01T00:00:00"}',
    b'{"group": "somebody-else"}',
    b'{"idempotency_key": "' + b"i" * 3000 + b'"}',
    b'{"sequence": 1e400}',
    b'{"causation_id": "x"}',
    b'{"item": "\\u0000"}',
    b'{"tracestate": "a=b", "unknown": {"a": [1, {"b": null}]}}',
    b'{"a":' * 3000,
)


@dataclass(slots=True)
class Record:
    """What is produced."""

    key: bytes | None
    payload: bytes | None
    headers: Headers
    kind: str
    """What was done to it, for people."""
    timestamp_ms: int = 0
    """0 leaves it to the client."""


@dataclass(frozen=True)
class Source:
    """Good payloads by type, and the frame that they all begin with."""

    payloads: dict[str, list[bytes]]
    seed: int
    now_ms: int
    """When good ids were made: the ledger does not reach back for ever."""
    ids: list[UUID] = field(default_factory=list)
    """Of former records, to be used again."""

    def records(self, count: int) -> Iterator[Record]:
        """So many, the same ones each time; the last of them are good."""
        chance = random.Random(f"fuzz {self.seed}")
        for number in range(count):
            record = self._good(chance)
            if number < count * 0.98:
                self._spoil(record, chance)
            yield record

    def _good(self, chance: random.Random) -> Record:
        kind = chance.choice(list(self.payloads))
        identity = UUID(
            int=self.now_ms << 80 | 7 << 76 | chance.getrandbits(12) << 64 | 2 << 62 | chance.getrandbits(62)
        )
        if self.ids and chance.random() < 0.02:
            identity = chance.choice(self.ids)
        elif len(self.ids) < 1000:
            self.ids.append(identity)
        headers: Headers = [
            ("id", str(identity).encode()),
            ("type", kind.encode()),
            ("version", b"1"),
            ("attempt", b"1"),
            ("tenant", None),
            ("context", None),
        ]
        key = f"k{chance.randrange(_KEYS)}".encode()
        return Record(key, chance.choice(self.payloads[kind]), headers, "good")

    def _spoil(self, record: Record, chance: random.Random) -> None:
        amount = chance.choices((0, 1, 2, 5), (45, 40, 10, 5))[0]
        before = record.payload
        for _ in range(amount):
            spoil = chance.choice(_SPOILERS)
            record.kind = f"{record.kind} {spoil.__name__.strip('_')}"
            spoil(record, chance, self)
        moved = before is not None and record.payload is not None and record.payload[:5] != before[:5]
        names = {value for name, value in record.headers if name == "type"}
        if moved or not names <= {name.encode() for name in self.payloads}:
            record.key = f"odd{chance.randrange(_ODD_KEYS)}".encode() if chance.random() < 0.8 else None


Spoiler = Callable[[Record, random.Random, Source], None]


def _flipped(record: Record, chance: random.Random, source: Source) -> None:
    found = bytearray(record.payload or b"\0")
    for _ in range(chance.randrange(1, 5)):
        found[chance.randrange(len(found)) if chance.random() < 0.9 else 0] ^= 1 << chance.randrange(8)
    record.payload = bytes(found)


def _cut(record: Record, chance: random.Random, source: Source) -> None:
    record.payload = (record.payload or b"")[: chance.randrange(len(record.payload or b"") + 1)]


def _extended(record: Record, chance: random.Random, source: Source) -> None:
    record.payload = (record.payload or b"") + chance.randbytes(chance.randrange(1, 50))


def _overwritten(record: Record, chance: random.Random, source: Source) -> None:
    """Numbers and lengths beyond reason."""
    found = bytearray(record.payload or b"")
    at = chance.randrange(5, len(found) + 1) if len(found) >= 5 else 0
    found[at : at + chance.randrange(1, 9)] = chance.choice(
        (b"\xff" * 9 + b"\x01", b"\x80" * 12, b"\x01", b"\xfe\xff\xff\x0f")
    )
    record.payload = bytes(found)


def _another_types(record: Record, chance: random.Random, source: Source) -> None:
    record.payload = chance.choice(source.payloads[chance.choice(list(source.payloads))])


def _of_another_schema(record: Record, chance: random.Random, source: Source) -> None:
    schema_id = chance.choice((0, 1, 2, 99_999, 2**31, 2**32 - 1))
    record.payload = b"\0" + schema_id.to_bytes(4, "big") + (record.payload or b"")[5:]


def _noise(record: Record, chance: random.Random, source: Source) -> None:
    record.payload = chance.choice((None, b"", chance.randbytes(chance.randrange(400)), b'{"json": true}', b"\0" * 100))


def _huge(record: Record, chance: random.Random, source: Source) -> None:
    if chance.random() < 0.05:
        record.payload = (record.payload or b"") + b"\x02" * chance.choice((100_000, 900_000))


def _header_lost(record: Record, chance: random.Random, source: Source) -> None:
    if record.headers:
        record.headers.pop(chance.randrange(len(record.headers)))


def _header_changed(record: Record, chance: random.Random, source: Source) -> None:
    values: tuple[bytes | None, ...] = (
        None,
        b"",
        b"\xff\xfe",
        b"a\0b",
        chance.randbytes(chance.randrange(1, 40)),
        b"x" * chance.choice(_LONG),
    )
    name, _ = chance.choice(record.headers) if record.headers else ("id", None)
    record.headers = [(n, chance.choice(values) if n == name else v) for n, v in record.headers]


def _header_added(record: Record, chance: random.Random, source: Source) -> None:
    name = chance.choice(("id", "type", "version", "attempt", "x-other", "", "ÿ" * 300, "run_id", "traceparent"))
    value = chance.choice((None, b"\xff", b"7", str(UUID(int=chance.getrandbits(128))).encode(), b"00-zz-zz-99"))
    record.headers.insert(chance.randrange(len(record.headers) + 1), (name, value))


def _number(record: Record, chance: random.Random, source: Source) -> None:
    name = chance.choice(("version", "attempt"))
    record.headers = [(n, chance.choice(_NUMBERS) if n == name else v) for n, v in record.headers]


def _context(record: Record, chance: random.Random, source: Source) -> None:
    record.headers = [(n, chance.choice(_CONTEXTS) if n == "context" else v) for n, v in record.headers]


def _type(record: Record, chance: random.Random, source: Source) -> None:
    name = chance.choice((IGNORED, "fuzz.Unknown", "test.", "🎉", *source.payloads)).encode()
    record.headers = [(n, name if n == "type" else v) for n, v in record.headers]


def _identity(record: Record, chance: random.Random, source: Source) -> None:
    identity: Any = UUID(int=chance.getrandbits(128))
    text = chance.choice(
        (str(identity), identity.hex, f"{{{identity}}}", str(identity).upper(), f"urn:uuid:{identity}", "0")
    )
    record.headers = [(n, text.encode() if n == "id" else v) for n, v in record.headers]


def _key(record: Record, chance: random.Random, source: Source) -> None:
    record.key = chance.choice((None, b"", b"\xff\xfe", b"a\0b", chance.randbytes(12), b"k" * chance.choice(_LONG)))


def _time(record: Record, chance: random.Random, source: Source) -> None:
    record.timestamp_ms = chance.choice(
        (1, 1_000_000_000_000, source.now_ms + 1_800_000)
    )  # the broker takes no more than an hour


_SPOILERS: Final[tuple[Spoiler, ...]] = (
    _flipped,
    _flipped,
    _cut,
    _extended,
    _overwritten,
    _another_types,
    _of_another_schema,
    _noise,
    _huge,
    _header_lost,
    _header_changed,
    _header_changed,
    _header_added,
    _number,
    _context,
    _type,
    _identity,
    _key,
    _time,
)


def skipped(record: Record, group: str) -> str | None:
    """Why a group may leave a record alone, told from its headers: it is for another group, or of a type that it ignores."""
    found = dict(record.headers)
    if found.get("type") == IGNORED.encode():
        return "ignored type"
    try:
        context = json.loads(found.get("context") or b"{}")
    except (ValueError, RecursionError):
        return None
    wanted = context.get("group") if isinstance(context, dict) else None
    return "another group's" if isinstance(wanted, str) and wanted != group else None


def identity(record: Record) -> UUID | None:
    """The command's id, where it has one that can be read."""
    value = dict(record.headers).get("id") or b""
    try:
        return UUID(value if isinstance(value, str) else value.decode())
    except ValueError:
        return None
