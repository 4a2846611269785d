"""What became of each spoiled record, told from what the group left. Pure.

A record is done (an effect of its id), a dead letter or parked (at its coordinates), discarded, skipped for a reason that its
headers show, or a duplicate of another record with its id, which is one of these. Anything else is a finding.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from uuid import UUID

from tests.chaos.fuzz import Record, identity, skipped

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What the group left."""

    dead: dict[Place, UUID]
    parked: dict[Place, UUID]
    effects: Counter[UUID]
    discarded: frozenset[UUID]


def account(sent: dict[Place, Record], books: Books, group: str) -> tuple[Counter[str], list[str]]:
    """How many records became what, and those that became nothing, or more than one thing."""
    outcomes: Counter[str] = Counter()
    found: list[str] = []
    ended = Counter(books.effects)
    ended.update(books.dead.values())
    ended.update(books.parked.values())
    ended.update(books.discarded)
    found += [f"{identity} has {count} ends" for identity, count in ended.items() if count > 1]
    taken: set[UUID] = set()
    for place, record in sent.items():
        known = identity(record)
        if place in books.dead:
            outcomes["dead letter"] += 1
        elif place in books.parked:
            outcomes["parked"] += 1
        elif (why := skipped(record, group)) is not None:
            outcomes[why] += 1
        elif known is None or not ended[known]:
            found.append(f"{place} ({record.kind}) became nothing")
        elif known in taken or known in books.dead.values() or known in books.parked.values():
            outcomes["duplicate"] += 1
        else:
            taken.add(known)
            outcomes["done" if known in books.effects else "discarded"] += 1
    known_ids = {known for record in sent.values() if (known := identity(record)) is not None}
    found += [f"an effect of {unknown}, which was not sent" for unknown in books.effects.keys() - known_ids]
    strangers = (books.dead.keys() | books.parked.keys()) - sent.keys()
    found += [f"a record at {place}, which was not sent" for place in strangers]
    return outcomes, found
