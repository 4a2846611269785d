"""What to do with a command that the ledger has seen before (design D3): pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from onceward_consumer.outcomes import Busy, Duplicate

BUSY_REST: Final = timedelta(seconds=1)


class Known(NamedTuple):
    """A ledger row; `alive` says whether the worker that runs it still has its lease."""

    command_id: UUID
    state: str
    attempt: int
    attempts_before: int
    first_failed_at: datetime | None
    incarnation: UUID | None
    alive: bool


@dataclass(frozen=True, slots=True)
class Proceed:
    """Run it as this attempt. `crashed` says that the attempt before ended with its worker."""

    attempt: int
    crashed: bool = False


Verdict: TypeAlias = Proceed | Duplicate | Busy


def judge(known: Known, record_attempt: int, *, released: bool = False, forgotten: bool = False) -> Verdict:
    """Decide on a record that asks for `record_attempt`, or on a command `released` from the parked ones.

    `forgotten` says that it is this worker's own by the ledger, and that nobody here has it in hand.

    >>> row = Known(UUID(int=1), "retrying", 3, 0, None, None, False)
    >>> judge(row, 3), judge(row, 2)
    (Proceed(attempt=3, crashed=False), Duplicate(reason='stale_attempt'))
    >>> running = row._replace(state="running", incarnation=UUID(int=9))
    >>> judge(running._replace(alive=True), 1), judge(running, 1)
    (Busy(delay=datetime.timedelta(seconds=1)), Proceed(attempt=4, crashed=True))

    A worker that drained has handed back what it had claimed, at no cost:

    >>> judge(running._replace(incarnation=None), 1)
    Proceed(attempt=3, crashed=False)
    """
    match known.state:
        case "retrying" if record_attempt >= known.attempt and not released:
            return Proceed(record_attempt)
        case "retrying":
            return Duplicate("stale_attempt")
        case "running" if known.incarnation is None or forgotten:
            return Proceed(known.attempt)
        case "running" if known.alive:
            return Busy(BUSY_REST)
        case "running":
            return Proceed(known.attempt + 1, crashed=True)
        case "parked" if released:
            return Proceed(known.attempt)
        case "parked":
            return Duplicate("parked")
        case _:
            return Duplicate(known.state)
