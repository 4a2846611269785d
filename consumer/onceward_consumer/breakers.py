"""When a destination is not called: a breaker's settings, its state, and how outcomes and time change it. Pure.

The state is a row that all workers share. Each adds what it has seen; whoever holds the row's lock decides.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, TypeAlias

from onceward_consumer.durations import Duration, duration
from onceward_consumer.failures import Kinds, Transient, Verdict
from onceward_schemas.errors import AppError

Phase: TypeAlias = Literal["closed", "open", "half_open"]

_LONGEST_ASKED: Final = 3600.0
_AGAINST: Final = frozenset({"timeout", "max_runtime", "connection", "tls", "http_408", "http_429"})
_SAYS_WHEN: Final = frozenset({"http_429", "http_503"})


class Breaker:
    """When a destination is given a rest, and for how long. All counts are over all workers."""

    __slots__ = ("counts", "failures", "least", "longest", "open_for", "ratio", "successes", "window")

    def __init__(
        self,
        *,
        failures: int = 5,
        ratio: float = 0.5,
        least: int = 20,
        window: Duration = "30s",
        open_for: Duration = "2s",
        longest: Duration = "1m",
        successes: int = 1,
        counts: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> None:
        """It opens after `failures` in a row, or when `ratio` of at least `least` calls within `window` fail.

        It stays open for `open_for` at first, twice as long each time that a probe fails, `longest` at most; then one
        call at a time probes, and `successes` of them close it. Time-outs, lost connections, TLS errors, HTTP 5xx, 408 and
        429 count as failures, and exceptions of the classes in `counts`. A Retry-After opens it at once until then.

        Raises: AppError.
        """
        self.failures = _whole(failures, "failures")
        self.least = _whole(least, "least")
        self.successes = _whole(successes, "successes")
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 1:
            raise AppError(f"Breaker: ratio is {ratio!r:.40}.", remedy="Give a number above 0, 1 at most.")
        self.ratio = float(ratio)
        self.window = duration(window, "Breaker: window")
        self.open_for = duration(open_for, "Breaker: open_for")
        self.longest = duration(longest, "Breaker: longest")
        if self.longest < self.open_for:
            raise AppError(
                f"Breaker: longest is {self.longest}, shorter than open_for.", remedy="Give at least open_for."
            )
        self.counts: Kinds = counts if isinstance(counts, tuple) else (counts,)
        for kind in self.counts:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise AppError(f"Breaker: counts has {kind!r:.40}.", remedy="Pass exception classes.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Breaker) and all(getattr(self, n) == getattr(other, n) for n in self.__slots__)

    def __hash__(self) -> int:
        return hash((self.failures, self.ratio, self.least, self.window, self.open_for, self.longest, self.successes))

    def __repr__(self) -> str:
        return f"Breaker({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"

    def speaks_against(self, error: BaseException | None, verdict: Verdict) -> bool:
        """Whether the failure is the destination's, and not the command's."""
        if error is not None and isinstance(error, self.counts):
            return True
        return isinstance(verdict, Transient) and (verdict.reason in _AGAINST or verdict.reason.startswith("http_5"))


def asked_seconds(verdict: Verdict) -> float:
    """How long the destination asks not to be called; 0 where it does not say."""
    if isinstance(verdict, Transient) and verdict.reason in _SAYS_WHEN and verdict.retry_after is not None:
        return min(_LONGEST_ASKED, verdict.retry_after.total_seconds())
    return 0.0


@dataclass(slots=True)
class Tally:
    """What one worker has seen since it last told: calls of a closed breaker, and what became of its probe."""

    calls: int = 0
    failed: int = 0
    in_a_row: int = 0
    """Failures since the last success."""
    rest_seconds: float = 0.0
    """The longest Retry-After."""
    probe: Literal["", "good", "bad"] = ""
    reason: str = ""

    def success(self) -> None:
        """A call went well, or failed by its command's fault."""
        self.calls += 1
        self.in_a_row = 0

    def failure(self, reason: str, rest_seconds: float = 0.0) -> None:
        """A call failed by the destination's fault."""
        self.calls += 1
        self.failed += 1
        self.in_a_row += 1
        self.rest_seconds = max(self.rest_seconds, rest_seconds)
        self.reason = reason

    @property
    def empty(self) -> bool:
        """Whether there is nothing to tell."""
        return not self.calls and not self.probe


@dataclass(frozen=True, slots=True)
class Circuit:
    """A breaker's state. Instants are seconds of the database's clock."""

    phase: Phase = "closed"
    since: float = 0.0
    until: float = 0.0
    """Open: when a probe may be made."""
    trips: int = 0
    """How often in a row it opened."""
    in_a_row: int = 0
    half: float = 0.0
    """When the present half of the window began."""
    calls: int = 0
    failed: int = 0
    calls_before: int = 0
    failed_before: int = 0
    """The half before."""
    prober: str = ""
    """The incarnation of the worker that may probe now."""
    good_probes: int = 0
    reason: str = ""

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | None) -> Self:
        """Read what `to_json` wrote; names that are not known are those of another version."""
        names = {each.name for each in dataclasses.fields(cls)}
        return cls(**{name: each for name, each in (value or {}).items() if name in names})

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, without what says nothing."""
        plain = Circuit()
        return {n: v for n, v in dataclasses.asdict(self).items() if v != getattr(plain, n)}


def after(circuit: Circuit, tally: Tally, breaker: Breaker, now: float, jitter: float = 0.5) -> Circuit:
    """The state once a worker has told what it saw; `jitter` in [0, 1) spreads how long it is open by a fifth."""
    match circuit.phase:
        case "closed" if tally.calls:
            return _counted(circuit, tally, breaker, now, jitter)
        case "half_open" if tally.probe == "bad":
            return _opened(circuit, tally, breaker, now, jitter, tally.reason)
        case "half_open" if tally.probe == "good":
            good = circuit.good_probes + 1
            if good >= breaker.successes:
                return Circuit("closed", now, half=now)
            return dataclasses.replace(circuit, prober="", good_probes=good)
    return circuit


def probing(circuit: Circuit, worker: str, now: float, *, alive: bool) -> Circuit:
    """The state once a worker has asked to probe: it may, if its rest is over and no other live worker is at it.

    `alive` says whether the present prober is.
    """
    if circuit.phase == "open" and now >= circuit.until:
        return dataclasses.replace(circuit, phase="half_open", since=now, prober=worker, good_probes=0)
    if circuit.phase == "half_open" and (not circuit.prober or not alive):
        return dataclasses.replace(circuit, prober=worker)
    return circuit


def _counted(circuit: Circuit, tally: Tally, breaker: Breaker, now: float, jitter: float) -> Circuit:
    circuit = _moved_on(circuit, breaker, now)
    in_a_row = circuit.in_a_row + tally.failed if tally.failed == tally.calls else tally.in_a_row
    circuit = dataclasses.replace(
        circuit, calls=circuit.calls + tally.calls, failed=circuit.failed + tally.failed, in_a_row=in_a_row
    )
    if tally.rest_seconds > 0:
        return _opened(circuit, tally, breaker, now, jitter, f"{tally.reason} asks for a rest")
    if in_a_row >= breaker.failures:
        return _opened(circuit, tally, breaker, now, jitter, f"{tally.reason}, {in_a_row} in a row")
    calls, failed = in_window(circuit, breaker, now)
    if tally.failed and calls >= breaker.least and failed >= breaker.ratio * calls:
        return _opened(circuit, tally, breaker, now, jitter, f"{tally.reason}, {failed:.0f} of {calls:.0f}")
    return circuit


def in_window(circuit: Circuit, breaker: Breaker, now: float) -> tuple[float, float]:
    """Calls and failures within the window: the present half, and of the one before what is still in it."""
    half = breaker.window.total_seconds() / 2
    left = min(1.0, max(0.0, 1.0 - (now - circuit.half) / half))
    return circuit.calls + circuit.calls_before * left, circuit.failed + circuit.failed_before * left


def _moved_on(circuit: Circuit, breaker: Breaker, now: float) -> Circuit:
    half = breaker.window.total_seconds() / 2
    passed = math.floor((now - circuit.half) / half)
    if passed <= 0:
        return circuit
    kept = (circuit.calls, circuit.failed) if passed == 1 else (0, 0)
    begun = circuit.half + half if passed == 1 else now
    return dataclasses.replace(circuit, half=begun, calls=0, failed=0, calls_before=kept[0], failed_before=kept[1])


def _opened(circuit: Circuit, tally: Tally, breaker: Breaker, now: float, jitter: float, reason: str) -> Circuit:
    trips = circuit.trips + 1
    seconds = min(breaker.longest.total_seconds(), breaker.open_for.total_seconds() * 2.0 ** min(trips - 1, 30))
    seconds = max(seconds * (0.8 + 0.4 * jitter), tally.rest_seconds)
    return Circuit("open", now, now + seconds, trips, reason=reason)


def _whole(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 1_000_000:
        raise AppError(f"Breaker: {name} is {value!r:.40}.", remedy="Give a whole number, at least 1.")
    return value
