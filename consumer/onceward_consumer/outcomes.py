"""What became of one execution, as values; `settle` turns each into rows (design D1, D5)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias

from onceward_consumer.redaction import LONGEST


@dataclass(frozen=True, slots=True)
class Done:
    """The handler returned."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A transient failure, to be tried again after `delay`."""

    reason: str
    error: str
    delay: timedelta
    where: str | None = None
    """The place in the service's code, see `origins`."""

    @property
    def text(self) -> str:
        """What is stored."""
        return _text(self.error, self.where)


@dataclass(frozen=True, slots=True)
class Dead:
    """Given up on: permanent, or attempts or time exhausted."""

    reason: str
    error: str
    where: str | None = None
    cause: str | None = None
    """The reason of the last failure, where `reason` only says that there is no further attempt."""

    @property
    def text(self) -> str:
        """What is stored."""
        return _text(self.error, self.where)


def _text(error: str, where: str | None) -> str:
    if where is None:
        return error
    room = LONGEST - len(where) - 3
    return f"{error if len(error) <= room else error[: room - 1] + '…'} ({where})"


BEYOND_LEDGER: Final = Dead(
    "beyond_ledger", "It is older than the ledger reaches: nobody knows whether it ran. Replay it if it did not."
)
"""Only an operator can find out. It does not hold its key, whose later commands may have run long ago."""


@dataclass(frozen=True, slots=True)
class Discarded:
    """Finished without effect, on purpose: the handler said so, or the deadline has passed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The ledger already has it, or a newer attempt of it; nothing is done."""

    reason: str


@dataclass(frozen=True, slots=True)
class Parked:
    """Waits in PostgreSQL behind its key, or for the stated reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Round:
    """A retry record whose instant is further away than its tier's delay: sent round again as the same attempt."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another live worker is at it; ask again after `delay`. Nothing is durable."""

    delay: timedelta


Outcome: TypeAlias = Done | Failed | Dead | Discarded | Duplicate | Parked | Round | Busy
