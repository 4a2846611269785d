"""How a limit is shared among workers: permits by fair shares, tokens from one bucket. Pure.

Whoever decides holds the lock of the limit's row, so that the sum over live workers never exceeds the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from onceward_consumer.limits import LIFE_SECONDS, Rate

_TURN_SECONDS: Final = 0.5


class Share(NamedTuple):
    """What a live worker has of a limit's permits, and how many it could use."""

    worker: str
    permits: int
    wanted: int


def fair_share(limit: int, wanted: Sequence[int], index: int, turn: int = 0) -> int:
    """How many of `limit` one of several workers may have: as many as it wants, if all can; else alike.

    What does not divide goes to one after the other, by `turn`.

    >>> [fair_share(10, [2, 20, 20], n) for n in range(3)], [fair_share(1, [1, 1], n, turn=1) for n in range(2)]
    ([2, 4, 4], [0, 1])
    """
    left = limit
    open_ = sorted(range(len(wanted)), key=lambda n: wanted[n])
    while open_:
        each = left // len(open_)
        first = open_[0]
        if wanted[first] > each:
            break
        if first == index:
            return wanted[first]
        left -= wanted[first]
        open_.pop(0)
    if index not in open_:
        return 0
    each, rest = divmod(left, len(open_))
    place = (sorted(open_).index(index) + turn) % len(open_)
    return each + (1 if place < rest else 0)


def permits(limit: int, worker: str, in_use: int, wanted: int, others: Sequence[Share], now: float) -> int:
    """How many permits a worker has from now on. `others` are live; what runs already is counted whatever the limit is."""
    everybody = sorted([Share(worker, in_use, max(in_use, wanted)), *others])
    index = next(n for n, share in enumerate(everybody) if share.worker == worker)
    fair = fair_share(limit, [share.wanted for share in everybody], index, int(now / _TURN_SECONDS))
    free = limit - sum(share.permits for share in others)
    return max(in_use, min(wanted, fair, free))


@dataclass(frozen=True, slots=True)
class Bucket:
    """The tokens of a rate at an instant of the database's clock; None: it was never filled, so it is full."""

    tokens: float | None = None
    filled_at: float = 0.0

    def at(self, rate: Rate, now: float) -> Bucket:
        """The same at a later instant. A clock that was set back adds nothing."""
        if self.tokens is None:
            return Bucket(rate.burst, now)
        passed = max(0.0, now - self.filled_at)
        return Bucket(min(rate.burst, self.tokens + passed * rate.per_second), max(now, self.filled_at))


class Drawn(NamedTuple):
    """What a worker took, what is left, and when there may be more."""

    tokens: int
    bucket: Bucket
    seconds: float


def draw(
    bucket: Bucket, rate: Rate, now: float, wanted: int, back: Sequence[tuple[int, float]] = (), rivals: int = 0
) -> Drawn:
    """Give back tokens that were not used, each with the instant at which it was taken, and take new ones.

    >>> from datetime import timedelta
    >>> slow = Rate(1, timedelta(minutes=1))
    >>> draw(Bucket(), slow, 100.0, 5)
    Drawn(tokens=1, bucket=Bucket(tokens=0.0, filled_at=100.0), seconds=60.0)
    """
    filled = bucket.at(rate, now)
    tokens = filled.tokens or 0.0
    tokens = min(rate.burst, tokens + sum(count for count, at in back if now - at <= LIFE_SECONDS))
    count = min(wanted, int(tokens + 1e-9), max(1, rate.block // (rivals + 1)))
    tokens = max(0.0, tokens - count)
    seconds = max(0.0, 1.0 - tokens) / rate.per_second
    return Drawn(count, Bucket(tokens, filled.filled_at), seconds)
