"""The one place that builds and reads topic names.

>>> tier("hr.notify", "hr", timedelta(seconds=10))
'hr.notify.hr.retry.10s'
>>> dead_letter("hr.notify", "hr")
'hr.notify.hr.dlq'
"""

from __future__ import annotations

import re
from datetime import timedelta

from onceward_schemas.errors import TopicNameError

SCHEDULER = "onceward.scheduler"
"""Its partitions are what scheduler processes share out; it carries no records."""

_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def checked(name: str) -> str:
    """Return `name` if Kafka accepts it as a topic name.

    Raises: TopicNameError.
    """
    if not _NAME.match(name) or name in (".", ".."):
        raise TopicNameError(
            f"{name[:80]!r} is not a topic name.",
            remedy="Use 1 to 249 letters, digits, dots, underscores or hyphens.",
        )
    return name


def delay_label(delay: timedelta) -> str:
    """The short form of a tier's delay, in the largest unit that divides it.

    >>> delay_label(timedelta(minutes=90)), delay_label(timedelta(milliseconds=500))
    ('90m', '500ms')
    """
    milliseconds = delay // timedelta(milliseconds=1)
    if milliseconds <= 0 or timedelta(milliseconds=milliseconds) != delay:
        raise TopicNameError(f"A tier cannot have the delay {delay}.", remedy="Use a whole number of milliseconds.")
    if milliseconds % 1000:
        return f"{milliseconds}ms"
    seconds = milliseconds // 1000
    return next(f"{seconds // size}{unit}" for unit, size in _UNITS if seconds % size == 0)


def tier(lane: str, group: str, delay: timedelta) -> str:
    """The retry topic of one delay for one consumer group."""
    return checked(f"{lane}.{group}.retry.{delay_label(delay)}")


def dead_letter(lane: str, group: str) -> str:
    """The dead-letter topic of one consumer group."""
    return checked(f"{lane}.{group}.dlq")
