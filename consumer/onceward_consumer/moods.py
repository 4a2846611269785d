"""How a group's transaction is run: from swift to careful, by how often the last ones failed. Pure."""

from __future__ import annotations

from enum import Enum, auto


class Mode(Enum):
    """From fast to slow; whatever fails in one is run again in a slower one, at no cost in attempts."""

    SWIFT = auto()
    """Pipelined, no savepoints: any exception rolls the group back."""
    GUARDED = auto()
    """Pipelined, a savepoint each: an exception of the handler's own undoes only its statements."""
    CAREFUL = auto()
    """Each answer awaited, a savepoint each: also an error of the server is the fault of the handler that met it."""
    SINGLE = auto()
    """A transaction for each command."""


class Mood:
    """Chooses a group's first mode.

    Savepoints pay when a fifth of the groups would otherwise run twice; doing without the pipeline pays when half would.
    """

    def __init__(self) -> None:
        self._raised = 0.0
        self._refused = 0.0

    def mode(self) -> Mode:
        """The mode to begin with.

        >>> mood = Mood()
        >>> for _ in range(8):
        ...     mood.note(raised=True, refused=False)
        >>> mood.mode()
        <Mode.GUARDED: 2>
        """
        if self._refused > 0.5:
            return Mode.CAREFUL
        return Mode.GUARDED if self._raised > 0.2 else Mode.SWIFT

    def note(self, *, raised: bool, refused: bool) -> None:
        """Say whether in a group a handler raised, and whether the server refused a statement."""
        self._raised += (raised - self._raised) / 16
        self._refused += (refused - self._refused) / 16
