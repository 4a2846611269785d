"""The account of spoiled records: each has one end, and one that has none, or two, is named."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from tests.chaos.accounts import Books, Place, account
from tests.chaos.fuzz import IGNORED, Record, Source

GROUP = "g"


def record(number: int, *more: tuple[str, bytes], kind: str = "test.A") -> Record:
    headers: list[tuple[str, str | bytes | None]] = [("id", str(UUID(int=number)).encode()), ("type", kind.encode())]
    return Record(b"k", b"payload", [*headers, *more], "good")


SENT: dict[Place, Record] = {
    (0, 0): record(1),
    (0, 1): record(1),
    (0, 2): record(2),
    (0, 3): record(3),
    (0, 4): record(4),
    (0, 5): record(5, kind=IGNORED),
    (0, 6): record(6, ("context", b'{"group": "another"}')),
    (0, 7): Record(None, None, [("id", b"\xff")], "spoiled"),
}


def books(**changed: object) -> Books:
    whole: dict[str, object] = {
        "dead": {(0, 2): UUID(int=2), (0, 7): UUID(int=70)},
        "parked": {(0, 3): UUID(int=3)},
        "effects": Counter([UUID(int=1)]),
        "discarded": frozenset([UUID(int=4)]),
    }
    return Books(**whole | changed)  # type: ignore[arg-type]


def test_each_end_is_counted() -> None:
    outcomes, findings = account(SENT, books(), GROUP)
    assert not findings
    assert outcomes == {
        "done": 1,
        "duplicate": 1,
        "dead letter": 2,
        "parked": 1,
        "discarded": 1,
        "ignored type": 1,
        "another group's": 1,
    }


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "nothing became of it": ({"discarded": frozenset()}, "(0, 4) (good) became nothing"),
    "nothing became of one without an id": ({"dead": {(0, 2): UUID(int=2)}}, "(0, 7) (spoiled) became nothing"),
    "it was done twice": ({"effects": Counter([UUID(int=1), UUID(int=1)])}, f"{UUID(int=1)} has 2 ends"),
    "it was done and is parked": ({"effects": Counter([UUID(int=1), UUID(int=3)])}, f"{UUID(int=3)} has 2 ends"),
    "nobody sent it": ({"effects": Counter([UUID(int=1), UUID(int=9)])}, "an effect of"),
    "no record was there": ({"parked": {(0, 3): UUID(int=3), (1, 1): UUID(int=8)}}, "a record at (1, 1)"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_end_is_named(what: str) -> None:
    changed, said = WRONG[what]
    _, findings = account(SENT, books(**changed), GROUP)
    assert any(finding.startswith(said) for finding in findings), findings


def test_the_same_seed_gives_the_same_records() -> None:
    first, second = (list(Source({"test.A": [b"\0\0\0\0\1abc"]}, 3, 1).records(500)) for _ in range(2))
    assert first == second
    assert len({r.kind for r in first}) > 50
    assert first[-1].kind == "good"
