"""When to try again, and when to give up: pure rules, without a clock of their own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Delays before the 2nd, 3rd, … attempt. Build one with `fixed`, `exponential` or `never`."""

    delays: tuple[timedelta, ...]
    """Delay before attempt n + 2 at index n; the last one repeats. The distinct ones are the lane's retry tiers."""
    attempts: int
    """Executions in all, the first included."""
    within: timedelta | None = None
    """No attempt starts later than this after the first failure."""
