"""What is known of commands whose process died or was ended under them, and what that makes of their next run.

A command that was alone in a process when it died is the cause, as far as anybody can tell. It is run once more, alone, in a
new one; when that dies too, it is a dead letter. A death is an attempt.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from onceward_consumer.outcomes import Busy, Dead

if TYPE_CHECKING:
    from onceward_consumer.handlers import Handler
    from onceward_consumer.items import Engine, Item

KILLED: Final = "worker_killed"
MOST_DEATHS: Final = 2
UNREAD: Final = 3
"""After so many deaths not even its payload is decoded: that may be what kills."""


@dataclass(slots=True)
class Deaths:
    """By command: how each process died that ran it alone, the first one first."""

    of: dict[UUID, tuple[str, ...]] = field(default_factory=dict)

    def note(self, command_id: UUID, how: str) -> None:
        """One more."""
        self.of[command_id] = (*self.of.get(command_id, ()), how)

    def forget(self, items: Iterable[Item]) -> None:
        """These have an outcome."""
        if self.of:
            for item in items:
                if not isinstance(item.outcome, Busy):
                    self.of.pop(item.id, None)


def judge(items: Iterable[Item], engine: Engine) -> None:
    """Count the deaths of admitted commands, and give up those that have none left. In their transaction, once admitted."""
    if not engine.deaths.of:
        return
    for item in items:
        died = engine.deaths.of.get(item.id)
        if died is None or item.outcome is not None or item.handler is None:
            continue
        if is_last(item, item.handler, len(died)):
            item.outcome = verdict(died)
        if len(died) > 1 or item.outcome is None:
            item.attempt += 1
            item.crashed, item.died = True, died[0]


def is_last(item: Item, handler: Handler, deaths: int) -> bool:
    """Whether there is no further run after so many deaths in one claim: two are enough, and each was an attempt."""
    made = item.attempt - item.attempts_before if item.first_failed_at is not None else 1
    return deaths >= MOST_DEATHS or made + deaths - 1 >= handler.retry.attempts


def verdict(died: tuple[str, ...]) -> Dead:
    """The dead letter of a command that killed its processes."""
    return Dead(KILLED, f"The process that ran it alone died: {', then '.join(died[:MOST_DEATHS])}.")
