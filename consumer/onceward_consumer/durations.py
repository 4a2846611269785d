"""Durations as people write them: `500ms`, `10s`, `5m`, `6h`, `1d`, or several together as in `1h30m`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias

from onceward_schemas.errors import AppError

Duration: TypeAlias = str | timedelta

_PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+\Z")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_LONGEST = timedelta(days=3_650)


def duration(value: Duration, name: str = "The duration") -> timedelta:
    """Read a positive duration; `name` is what an error calls it.

    >>> duration("1h30m"), duration("500ms")
    (datetime.timedelta(seconds=5400), datetime.timedelta(microseconds=500000))

    Raises: AppError.
    """
    if isinstance(value, str):
        text = value.strip().lower()
        if not _WHOLE.match(text):
            raise AppError(f"{name} is {value[:40]!r}.", remedy="Write it like 500ms, 10s, 5m, 6h or 1d.")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
        if seconds > _LONGEST.total_seconds():
            raise AppError(f"{name} is {value[:40]!r}, more than ten years.", remedy="Write a shorter one.")
        value = timedelta(seconds=seconds)
    if not isinstance(value, timedelta):
        raise AppError(
            f"{name} is {value!r:.40}.", remedy="Write it like 500ms, 10s, 5m, 6h or 1d, or pass a timedelta."
        )
    if not timedelta(0) < value <= _LONGEST:
        raise AppError(f"{name} is {value}.", remedy="It must be more than zero and at most ten years.")
    if value % timedelta(milliseconds=1):
        raise AppError(f"{name} is {value}.", remedy="Use a whole number of milliseconds.")
    return value
