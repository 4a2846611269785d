"""Command ids: UUID version 7, so that they sort by the time of publishing and ledger partitions can be dropped by age.

Source: RFC 9562, section 5.7.
"""

from __future__ import annotations

import os
import threading
import time
from uuid import UUID

_lock = threading.Lock()
_last = 0
# A child process must not inherit a lock that another thread of its parent held.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def new_id() -> UUID:
    """A version 7 UUID; within one process each is greater than the one before.

    The 12 bits after the version count within a millisecond, and overflow into the timestamp.
    """
    global _last
    with _lock:
        _last = max(_last + 1, (time.time_ns() // 1_000_000) << 12)
        stamp = _last
    random = int.from_bytes(os.urandom(8)) >> 2
    return UUID(int=(stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random)
