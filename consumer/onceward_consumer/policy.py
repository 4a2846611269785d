"""When to try again, and when to give up: pure rules, without a clock of their own.

Each distinct delay of a policy is a retry tier, a topic whose records all wait equally long. What an exception means is
said in `failures`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from onceward_consumer.durations import Duration, duration
from onceward_consumer.numbers import whole
from onceward_schemas.errors import AppError

TOLERANCE: Final = 0.1
"""How much longer than its tier's delay a record may wait, as a share of the delay: room for jitter."""

LONGEST_RETRY_AFTER: Final = timedelta(hours=1)
"""A server's Retry-After counts up to this. It bounds how long a record may stand in a tier that is shorter than its wait,
before others that are due."""

MOST_TIERS: Final = 24
LONGEST: Final = timedelta(days=29)
"""How long the retries of a command may take, the ledger's retention less a day for what is late and for clocks that differ."""

_FOREVER: Final = 1e10
"""More seconds than anybody waits, and fewer than a timedelta holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Delays before the 2nd, 3rd, … attempt. Build one with `fixed`, `exponential` or take `never`."""

    delays: tuple[timedelta, ...]
    """Delay before attempt n + 2 at index n; the last one repeats. The distinct ones are the lane's retry tiers."""
    attempts: int
    """Executions in all, the first included."""
    within: timedelta | None = None
    """No attempt starts later than this after the first failure."""
    jitter: bool = False
    """Spread the retries of commands that failed together: over two neighbouring tiers, and within the tolerance."""

    def __post_init__(self) -> None:
        whole(self.attempts, "attempts")
        if self.attempts > 1 and not self.delays:
            raise AppError("The retry policy has no delay.", remedy="Give one, or use retry=never.")
        if len(set(self.delays)) > MOST_TIERS:
            raise AppError(
                f"The retry policy has {len(set(self.delays))} different delays, and each needs a topic.",
                remedy=f"Use a larger factor or fewer attempts; {MOST_TIERS} is the most.",
            )
        if self.longest > LONGEST:
            raise AppError(
                f"The retries may take {self.longest.days} days; commands are remembered for 30.",
                remedy=f"Give fewer attempts, shorter delays, or within={f'{LONGEST.days}d'!r}.",
            )

    @property
    def tiers(self) -> tuple[timedelta, ...]:
        """The delays that need a topic, shortest first."""
        return tuple(sorted(set(self.delays)))

    @property
    def longest(self) -> timedelta:
        """From the first failure to the start of the last attempt, at most; servers that say Retry-After apart.

        >>> fixed("10s", attempts=3).longest, fixed("10s", attempts=3, within="5s").longest
        (datetime.timedelta(seconds=22), datetime.timedelta(seconds=5))
        """
        if self.within is not None:
            return self.within
        seconds = [delay.total_seconds() for delay in self.delays[self.jitter and len(self.delays) > 1 :]]
        steps = seconds[: self.attempts - 1]
        total = sum(steps) + (seconds[-1] if seconds else 0) * (self.attempts - 1 - len(steps))
        return timedelta(seconds=min(total * (1 + TOLERANCE), _FOREVER))


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt: `attempts_exhausted` or `time_exhausted`."""

    reason: str


never: Final = RetryPolicy(delays=(), attempts=1)
"""The first transient failure is final."""


def fixed(delay: Duration, *, attempts: int = 5, within: Duration | None = None, jitter: bool = False) -> RetryPolicy:
    """The same delay before every retry.

    >>> fixed("5s", attempts=3).tiers
    (datetime.timedelta(seconds=5),)
    """
    return RetryPolicy(
        delays=(duration(delay, "delay"),), attempts=attempts, within=_optional(within, "within"), jitter=jitter
    )


def exponential(
    first: Duration,
    ceiling: Duration,
    *,
    attempts: int = 8,
    within: Duration | None = None,
    factor: float = 2,
    jitter: bool = True,
) -> RetryPolicy:
    """Delays that grow by `factor` from `first` up to `ceiling`.

    >>> [delay.total_seconds() for delay in exponential("1s", "10s", attempts=6).delays]
    [1.0, 2.0, 4.0, 8.0, 10.0]
    """
    start, most = duration(first, "first"), duration(ceiling, "ceiling")
    if most < start:
        raise AppError(f"The ceiling, {most}, is below the first delay, {start}.", remedy="Swap or correct them.")
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 1.1 <= factor <= 100:
        raise AppError(f"factor is {factor!r:.40}.", remedy="Give a number from 1.1 to 100, or use fixed.")
    delays = [start]
    while len(delays) < attempts - 1 and delays[-1] < most:
        delays.append(min(most, _whole_milliseconds(start * factor ** len(delays))))
    return RetryPolicy(delays=tuple(delays), attempts=attempts, within=_optional(within, "within"), jitter=jitter)


def next_delay(
    policy: RetryPolicy,
    failed_attempt: int,
    first_failed_at: datetime | None,
    now: datetime,
    retry_after: timedelta | None = None,
    chance: Callable[[], float] = random.random,
) -> timedelta | GiveUp:
    """How long to wait after attempt `failed_attempt` (from 1) failed at `now`, or that there is no further attempt.

    The delay is never shorter than the policy's and never shorter than `retry_after`. `first_failed_at` is None when
    this is the first failure. `chance` gives numbers in [0, 1) and decides the jitter.

    >>> at = datetime(2026, 1, 1)
    >>> next_delay(fixed("5s", attempts=3), 1, None, at)
    datetime.timedelta(seconds=5)
    >>> next_delay(fixed("5s", attempts=3), 3, at, at)
    GiveUp(reason='attempts_exhausted')
    >>> next_delay(fixed("5s", attempts=3, within="1m"), 2, at, at + timedelta(seconds=58))
    GiveUp(reason='time_exhausted')
    """
    if failed_attempt >= policy.attempts:
        return GiveUp("attempts_exhausted")
    step = min(max(failed_attempt, 1), len(policy.delays)) - 1
    wanted = policy.delays[step]
    if retry_after is not None:
        wanted = max(wanted, min(retry_after, LONGEST_RETRY_AFTER))
    left = None if policy.within is None else (first_failed_at or now) + policy.within - now
    if left is not None and wanted > left:
        return GiveUp("time_exhausted")
    delay = max(wanted, tier_for(policy, wanted))
    if policy.jitter:
        delay = _jittered(policy, delay, step, chance)
    return delay if left is None else min(delay, left)


def tier_for(policy: RetryPolicy, wanted: timedelta) -> timedelta:
    """The tier in which a record that waits for `wanted` is kept.

    It is the smallest tier that, with its tolerance, is not shorter. Where none is that long it is the largest, and the
    record's `due_at` lies beyond the tier's delay, by LONGEST_RETRY_AFTER at most: those behind it wait too.

    >>> policy = exponential("1s", "8s", attempts=5)
    >>> [tier_for(policy, timedelta(seconds=s)).seconds for s in (1, 2.1, 2.5, 30)]
    [1, 2, 4, 8]
    """
    if not policy.delays:
        raise AppError("A policy without retries has no tier.", remedy="Ask next_delay first.")
    tiers = policy.tiers
    return next((tier for tier in tiers if tier * (1 + TOLERANCE) >= wanted), tiers[-1])


def _jittered(policy: RetryPolicy, delay: timedelta, step: int, chance: Callable[[], float]) -> timedelta:
    """This delay or its successor, and up to the tolerance more; a delay that no tier covers gets the latter only."""
    if delay == policy.delays[step] and step + 1 < len(policy.delays) and chance() < 0.5:
        delay = policy.delays[step + 1]
    tier = tier_for(policy, delay)
    room = delay * TOLERANCE if delay > tier * (1 + TOLERANCE) else tier * (1 + TOLERANCE) - delay
    return delay + room * chance()


def _whole_milliseconds(value: timedelta) -> timedelta:
    return timedelta(milliseconds=round(value / timedelta(milliseconds=1)))


def _optional(value: Duration | None, name: str) -> timedelta | None:
    return None if value is None else duration(value, name)
