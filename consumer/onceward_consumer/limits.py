"""What a limit is: concurrency, rate and breaker of a lane, type, destination or tenant, as declared and as overridden. Pure."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from onceward_consumer.breakers import Breaker
from onceward_consumer.durations import duration
from onceward_consumer.handlers import Handler
from onceward_consumer.numbers import whole
from onceward_schemas.errors import AppError

SCOPES: Final = ("lane", "type", "destination", "tenant")
ANY_TENANT: Final = "tenant:*"
"""The limit of each tenant that has none of its own."""
_RATE: Final = re.compile(r"(\d{1,9})/(\d{0,6})(ms|s|m|h|d)")
_MOST: Final = 1_000_000
LIFE_SECONDS: Final = 0.5
"""A token that was not used for so long is void."""
_REMEDY: Final = f"Write {', '.join(f'{scope}:NAME' for scope in SCOPES)}, or {ANY_TENANT}."


@dataclass(frozen=True, slots=True)
class Rate:
    """So many calls in a period, spread over it."""

    count: int
    period: timedelta

    @property
    def per_second(self) -> float:
        """How many in a second."""
        return self.count / self.period.total_seconds()

    @property
    def burst(self) -> float:
        """What the bucket holds: half a second's, at least one."""
        return max(1.0, self.per_second * 0.5)

    @property
    def block(self) -> int:
        """How many a worker takes at once: a fifth of a second's, at least one."""
        return max(1, int(self.per_second * 0.2))

    def most_in(self, seconds: float) -> float:
        """How many calls may begin in any stretch of so many seconds, over all workers.

        A token is used within half a second or not at all, so those of the half second before count too.

        >>> Rate(600, timedelta(minutes=1)).most_in(60)
        610.0
        """
        return self.per_second * (seconds + LIFE_SECONDS) + self.burst

    def __str__(self) -> str:
        seconds = self.period.total_seconds()
        for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
            if seconds >= size and seconds % size == 0:
                times = int(seconds // size)
                return f"{self.count}/{'' if times == 1 else times}{unit}"
        return f"{self.count}/{round(seconds * 1000)}ms"


def rate(value: Any, what: str = "The rate") -> Rate:
    """Read a rate: `600/m`, `10/s`, `100/10s`, `1/h`.

    >>> rate("600/m"), str(rate("100/10s")), str(rate("1/500ms"))
    (Rate(count=600, period=datetime.timedelta(seconds=60)), '100/10s', '1/500ms')

    Raises: AppError.
    """
    if isinstance(value, Rate):
        return value
    found = _RATE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None or int(found[1]) == 0 or found[2].strip("0") == "" != found[2]:
        raise AppError(f"{what} is {value!r:.40}.", remedy="Write a number over a period: 600/m, 10/s, 100/10s or 1/h.")
    result = Rate(int(found[1]), duration(f"{found[2] or 1}{found[3]}", what))
    if result.period > timedelta(days=1):
        raise AppError(f"{what} is {value!r:.40}.", remedy="Give a period of a day at most.")
    if result.per_second > _MOST:
        raise AppError(
            f"{what} is {value!r:.40}, more than {_MOST:,} a second.", remedy="Leave it out: it limits nothing."
        )
    return result


def concurrency(value: Any, what: str = "concurrency") -> int:
    """Check a number of calls at the same time; 0 lets none begin.

    Raises: AppError.
    """
    return whole(value, what, 0, _MOST)


def scope(value: Any) -> str:
    """Check the name of a limit.

    >>> scope("destination:smtp")
    'destination:smtp'

    Raises: AppError.
    """
    kind, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind not in SCOPES or not colon or not name.strip() or len(value) > 300 or not value.isprintable():
        nearest = difflib.get_close_matches(kind.lower(), SCOPES, n=1, cutoff=0.6)
        hint = f"Did you mean {nearest[0]}:{name}?" if nearest and kind not in SCOPES and name else _REMEDY
        raise AppError(f"{value!r:.80} names no limit.", remedy=hint)
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What holds for one scope. None: not limited in this respect."""

    concurrency: int | None = None
    rate: Rate | None = None
    breaker: Breaker | None = None
    paused: bool = False

    @property
    def counted(self) -> bool:
        """Whether permits or tokens are needed."""
        return self.concurrency is not None or self.rate is not None

    @property
    def idle(self) -> bool:
        """Whether it has nothing to say."""
        return not self.counted and self.breaker is None and not self.paused

    def __str__(self) -> str:
        """As people read it.

        >>> str(Limit(concurrency=20, rate=rate("600/m"), breaker=Breaker())), str(Limit())
        ('concurrency 20, rate 600/m, breaker', 'none')
        """
        said = [] if self.concurrency is None else [f"concurrency {self.concurrency}"]
        said += [] if self.rate is None else [f"rate {self.rate}"]
        said += ["breaker"] if self.breaker is not None else []
        return ", ".join(said) or "none"


UNLIMITED: Final = Limit()


@dataclass(frozen=True, slots=True)
class Override:
    """A row of onceward.limits: what an operator set. None leaves what is declared; `off` takes it away."""

    concurrency: int | None = None
    rate: str | None = None
    breaker: str | None = None
    paused: bool = False

    OFF = "off"
    NO_CONCURRENCY = -1

    def over(self, declared: Limit) -> Limit:
        """The declared limit with what is set here.

        >>> Override(5, "off").over(Limit(concurrency=20, rate=rate("10/s")))
        Limit(concurrency=5, rate=None, breaker=None, paused=False)
        """
        result = dataclasses.replace(declared, paused=self.paused)
        if self.concurrency is not None:
            chosen = None if self.concurrency == self.NO_CONCURRENCY else self.concurrency
            result = dataclasses.replace(result, concurrency=chosen)
        if self.rate is not None:
            result = dataclasses.replace(result, rate=None if self.rate == self.OFF else rate(self.rate))
        if self.breaker == self.OFF:
            result = dataclasses.replace(result, breaker=None)
        return result


@dataclass(frozen=True, slots=True)
class Rules:
    """All limits of an app: by scope those that have something to say."""

    by_scope: Mapping[str, Limit]

    def of(self, name: str) -> Limit:
        """The limit of a scope; a tenant without its own has that of all tenants."""
        found = self.by_scope.get(name)
        if found is None and name.startswith("tenant:"):
            found = self.by_scope.get(ANY_TENANT)
        return found or UNLIMITED

    @property
    def about_tenants(self) -> bool:
        """Whether any of them concerns tenants."""
        return any(name.startswith("tenant:") for name in self.by_scope)


def rules(declared: Mapping[str, Limit], overrides: Mapping[str, Override]) -> Rules:
    """What holds now."""
    result: dict[str, Limit] = {}
    for name in {*declared, *overrides}:
        base = declared.get(name) or (declared.get(ANY_TENANT) if name.startswith("tenant:") else None) or UNLIMITED
        found = overrides[name].over(base) if name in overrides else base
        if not found.idle or (name.startswith("tenant:") and name != ANY_TENANT):
            result[name] = found
    if any_tenant := overrides.get(ANY_TENANT):
        _widen(result, declared, overrides, any_tenant)
    return Rules(result)


def _widen(
    result: dict[str, Limit], declared: Mapping[str, Limit], overrides: Mapping[str, Override], any_tenant: Override
) -> None:
    """What an operator set for all tenants also holds for a tenant whose own row says nothing of it."""
    for name, override in overrides.items():
        if name.startswith("tenant:") and name != ANY_TENANT and name not in declared:
            result[name] = override.over(
                dataclasses.replace(any_tenant.over(declared.get(ANY_TENANT) or UNLIMITED), paused=False)
            )


def declared_limits(declared: Mapping[str, Limit], handlers: Iterable[Handler]) -> dict[str, Limit]:
    """What the app declares: each destination has a breaker unless it says otherwise.

    Raises: AppError when a limit is declared for a lane, type or destination that no handler has.
    """
    found = tuple(handlers)
    known = {
        "lane": {handler.lane for handler in found},
        "type": {handler.type for handler in found},
        "destination": {handler.destination for handler in found if handler.destination is not None},
    }
    for name in declared:
        kind, _, rest = name.partition(":")
        if kind in known and rest not in known[kind]:
            nearest = difflib.get_close_matches(rest, known[kind], n=1)
            raise AppError(
                f"There is a limit for {name}, and no handler has that {kind}.",
                remedy=f"Did you mean {kind}:{nearest[0]}?" if nearest else "Correct the name, or take the limit away.",
            )
    return {f"destination:{name}": Limit(breaker=Breaker()) for name in known["destination"]} | dict(declared)
