"""Python's search for garbage in cycles, in a process that runs commands: a third of its CPU with Python's own settings."""

from __future__ import annotations

import gc
from typing import Final

_PYTHONS_OWN: Final = (700, 10, 10)
_YOUNG: Final = 20_000
"""New objects before a search. A fetch makes some 7,000, nearly all of which go when their commands are done, without one."""


def search_less() -> None:
    """Leave out of the search what is there now, for it stays, and begin it less often.

    Where somebody has set the collector up otherwise, or switched it off, it is left as it is.
    """
    if gc.isenabled() and gc.get_threshold() == _PYTHONS_OWN:
        gc.collect()
        gc.freeze()
        gc.set_threshold(_YOUNG, *_PYTHONS_OWN[1:])
