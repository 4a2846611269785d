"""What a trial is, and what each command is meant to come to: pure functions that workers and the checker share."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from typing import Literal

Ending = Literal["done", "rejected", "broken", "exhausted"]

_DYING, _FAILING = 5, 50  # of a thousand commands: 0.5 % for good, 5 % for a while


@dataclass(frozen=True, slots=True)
class Fate:
    """How a command goes: so many transient failures first, then this end."""

    failures: int = 0
    ending: Ending = "done"

    @property
    def dies(self) -> bool:
        """Whether it is meant to become a dead letter."""
        return self.ending != "done"


def fate(seed: int, key: str, number: int) -> Fate:
    """What the command with this number within its key is meant to do; the same each time it is asked.

    >>> fate(1, "k1", 1)
    Fate(failures=0, ending='done')
    >>> fates = [fate(1, "k1", n) for n in range(20_000)]
    >>> sum(f.dies for f in fates), sum(f.failures > 0 and not f.dies for f in fates)
    (110, 992)
    """
    point = zlib.crc32(f"{seed}/{key}/{number}".encode())
    share, failures = point % 1000, point // 1000 % 3
    if share < _DYING:
        endings: tuple[Ending, ...] = ("rejected", "broken", "exhausted")
        return Fate(failures, endings[point // 3000 % 3])
    if share < _DYING + _FAILING:
        return Fate(failures + 1)
    return Fate()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One trial."""

    mode: str = "transactional"
    order: str = "retry"
    commands: int = 200_000
    keys: int = 1_000
    seconds: float = 300.0
    """How long the attacks last; the commands are spread over this time."""
    seed: int = 1
    work_seconds: float = 0.0
    """How long a handler takes."""
    workers: int = 3

    def __str__(self) -> str:
        return f"{self.mode} {self.order} seed {self.seed}"

    def fate(self, key: str, number: int) -> Fate:
        """See `fate`."""
        return fate(self.seed, key, number)


@dataclass(frozen=True, slots=True)
class Stage:
    """What a worker process has to know: the plan, its group and lane, and the file that stands for another system."""

    plan: Plan
    group: str
    lane: str
    gateway: str

    def to_text(self) -> str:
        """As one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Stage:
        """The reverse of `to_text`."""
        values = json.loads(text)
        return cls(Plan(**values.pop("plan")), **values)
