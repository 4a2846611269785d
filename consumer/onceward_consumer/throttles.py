"""What stands between a command that is next in its key and a runner: limits, pauses, breakers (design D7).

`lanes` asks; keys that are refused wait in a list of the limit that refused them, and keep nobody else waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from onceward_consumer.deliveries import Delivery, Kind

Overflow: TypeAlias = Literal["throttled", "paused", "breaker_open", "over_quota"]
"""Why a command is parked that could run but for a limit. It costs no attempt, and comes again when there is room."""


class Throttle(Protocol):
    """All methods are called under the buffer's lock, from any thread: quick, in memory, without I/O.

    None of them may call the buffer: whoever finds a limit open again calls `Buffer.permitted`, without that lock.
    """

    def begin(self, kind: Kind) -> None:
        """What is admitted from here to the next `begin` is taken by one runner.

        Of a transactional kind it is a group, run one after the other; of an external one each is called by itself.
        """

    def admit(self, delivery: Delivery) -> str | None:
        """None: it may run now, and what it needs is taken. Else the name of the limit that stands in its way, and
        nothing is taken: `type:shop.Pay`, `destination:smtp`, `tenant:acme`, `lane:hr.bulk`."""

    def leave(self, deliveries: Sequence[Delivery]) -> None:
        """Their runs are over, with any outcome: concurrency permits go back.

        A group of a transactional kind comes back as a whole; of an external one key by key.
        """

    def reason(self, name: str) -> Overflow:
        """Why commands are parked that wait behind this limit when they fill the buffer."""

    def room(self, name: str) -> int:
        """How many parked commands the limit can take in the next seconds: so many are sent round again."""
