"""How often a worker's process looks for garbage in cycles.

Python looks through young objects whenever 700 have been made, and through all of them as their number grows. What a worker
has fetched is many objects that wait a while and are no garbage: looking through them took a third of its time. Memory does
not grow by looking less often, since what a command leaves behind is in no cycle.
"""

from __future__ import annotations

import gc
from typing import Final

_THRESHOLDS: Final = (10_000, 20, 20)


def calm() -> None:
    """For processes that are workers, before the application is loaded, which may decide otherwise."""
    gc.set_threshold(*_THRESHOLDS)
