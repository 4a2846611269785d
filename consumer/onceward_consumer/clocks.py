"""The database's clock, read from afar: local time is only used to count from the last reading."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta


class DatabaseClock:
    """Bounds on what the database's clock shows now.

    A reading was made between `asked` and `answered`, so the database is at least `answered`'s elapsed time beyond it, and
    at most `asked`'s. Waiting for an instant uses the lower bound and is never early; setting one uses the upper.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        now = monotonic()
        self._reading = (datetime.now(UTC), now, now)

    def set(self, shown: datetime, asked: float, answered: float) -> None:
        """Note what the database showed to a question asked and answered at these monotonic instants."""
        self._reading = (shown, asked, answered)

    def reading(self) -> tuple[datetime, float, float]:
        """The last one, as given to `set`."""
        return self._reading

    def earliest(self) -> datetime:
        """The database's clock is not before this."""
        shown, _, answered = self._reading
        return shown + timedelta(seconds=self._monotonic() - answered)

    def latest(self) -> datetime:
        """The database's clock is not after this."""
        shown, asked, _ = self._reading
        return shown + timedelta(seconds=self._monotonic() - asked)

    def seconds_until(self, instant: datetime) -> float:
        """How long to wait so as not to be early; not positive when it is over."""
        return (instant - self.earliest()).total_seconds()
