"""The application object: which commands are handled, under which rules, and what is scheduled.

It only collects and checks declarations; workers and schedulers read them.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, TypeVar, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from onceward_consumer import limits
from onceward_consumer.breakers import Breaker
from onceward_consumer.durations import Duration, duration
from onceward_consumer.failures import Discard, Reject, Retry, Rules
from onceward_consumer.guard import Ceiling
from onceward_consumer.handlers import Executor, Handler, Mode, Order
from onceward_consumer.numbers import whole
from onceward_consumer.policy import RetryPolicy, exponential
from onceward_consumer.runs import Runs
from onceward_consumer.signatures import accepts, check_signature, is_async, name_of
from onceward_consumer.turns import LaneRules
from onceward_producer.default import AmbientCodec
from onceward_schemas import topics
from onceward_schemas.command import Command
from onceward_schemas.errors import AppError, TopicNameError

Function = TypeVar("Function", bound=Callable[..., Any])

_MODES = typing.get_args(Mode)
_ORDERS = typing.get_args(Order)
_EXECUTORS = typing.get_args(Executor)
_TYPE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_DEFAULT_RETRY = exponential("1s", "10m", attempts=8, within="6h")
_DEFAULT_CEILING = Ceiling()
_DEFAULT_CONCURRENCY = 16
_LANE_DEFAULTS = LaneRules()
_MOST_WEIGHT = 1_000
_MOST_RESERVED = 100
_DEFAULT_BREAKER = Breaker()
_DEFAULT_BATCH = 500
_DEFAULT_EXTERNAL_RUNTIME = timedelta(seconds=60)
"""No call to another system without a limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDeclaration:
    """What `App.schedule` was told; the scheduler reads and checks the rule."""

    id: str
    """Unique in the app; names the schedule's row, so renaming it starts a new schedule."""
    rule: str
    """A cron line or an interval, as written."""
    tz: str
    catch_up: timedelta | None
    """Ticks missed by more than this are skipped. None leaves it to the scheduler's default."""
    function: Callable[..., Any]
    """Called as function(tick); returns a command, several, or None."""


class App:
    """A consumer group: its name, its handlers and its schedules."""

    def __init__(
        self,
        name: str,
        *,
        retry: RetryPolicy = _DEFAULT_RETRY,
        order: Order = "retry",
        max_runtime: Duration | None = None,
        ignores: Iterable[str] = (),
        dead_letters: Ceiling | None = _DEFAULT_CEILING,
    ) -> None:
        """Name the group. `retry`, `order` and `max_runtime` are what handlers get that do not say otherwise.

        `ignores` names types on the app's lanes that other groups handle: this one skips their records. Any other type
        without a handler is parked, and its key waits until a worker has the handler.

        `dead_letters` says how many of one type may follow each other before a worker takes them for the sign of an outage,
        and parks the others until it is over. None lets all pass.

        Raises: AppError.
        """
        self.name = _name(name, "The app's name")
        self._retry = _policy(retry)
        self._order = _order(order)
        self._max_runtime = None if max_runtime is None else duration(max_runtime, "max_runtime")
        self.ignores = _type_names(ignores)
        """Types that are left to other groups."""
        self.dead_letters = _ceiling(dead_letters)
        """How many may follow each other."""
        self._handlers: dict[str, Handler] = {}
        self._lane_rules: dict[str, LaneRules] = {}
        self._limits: dict[str, limits.Limit] = {}
        self._schedules: dict[str, ScheduleDeclaration] = {}
        self.runs = Runs(AmbientCodec(), self._item_stages)
        """Starts bulk operations; see `Runs.start`. Reads the settings when a follow-up is first encoded."""

    def __repr__(self) -> str:
        return f"App({self.name!r}, {len(self._handlers)} handlers, {len(self._schedules)} schedules)"

    @property
    def handlers(self) -> Mapping[str, Handler]:
        """Handlers by their command's full name."""
        return MappingProxyType(self._handlers)

    @property
    def schedules(self) -> tuple[ScheduleDeclaration, ...]:
        """In order of declaration."""
        return tuple(self._schedules.values())

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that the group consumes, sorted."""
        return tuple(sorted({handler.lane for handler in self._handlers.values()}))

    @property
    def limits(self) -> Mapping[str, limits.Limit]:
        """What `limit` declared, by scope."""
        return MappingProxyType(self._limits)

    def limit(
        self,
        scope: str,
        *,
        concurrency: int | None = None,
        rate: str | None = None,
        breaker: Breaker | None = _DEFAULT_BREAKER,
    ) -> None:
        """Limit what runs at the same time, and what begins in a period, over all workers of the group.

        `scope` is `lane:NAME`, `type:NAME`, `destination:NAME`, `tenant:NAME`, or `tenant:*` for each tenant that has no limit
        of its own. A rate is written `600/m`. A destination has a breaker, this one; `breaker=None` takes it away. Operators
        change all of it at run time with `onceward limit`.

        Raises: AppError.
        """
        name = limits.scope(scope)
        if name in self._limits:
            raise AppError(f"{name} is limited twice.", remedy="Put both in one call.")
        of_destination = name.startswith("destination:")
        if not of_destination and breaker is not _DEFAULT_BREAKER:
            raise AppError(f"{name} cannot have a breaker.", remedy="Breakers belong to destinations.")
        if not of_destination and concurrency is None and rate is None:
            raise AppError(f"{name} is not limited by anything.", remedy="Give concurrency, rate, or both.")
        if not (breaker is None or isinstance(breaker, Breaker)):
            raise AppError(f"{name}: breaker is {breaker!r:.40}.", remedy="Pass Breaker(...), or None for no breaker.")
        self._limits[name] = limits.Limit(
            concurrency=None if concurrency is None else limits.concurrency(concurrency, f"{name}: concurrency"),
            rate=None if rate is None else limits.rate(rate, f"{name}: rate"),
            breaker=breaker if of_destination else None,
        )

    @property
    def lane_rules(self) -> Mapping[str, LaneRules]:
        """What was declared of each lane that the group consumes, and the defaults of the others."""
        return {lane: self._lane_rules.get(lane, _LANE_DEFAULTS) for lane in self.lanes}

    def lane(self, name: str, *, weight: int = 1, reserved: int = 0) -> None:
        """Say how a lane shares each worker's runners, which are its threads and its tasks, with the other lanes.

        While several lanes have work they get runner time in proportion to their weights; a lane without work leaves its
        share to the others. `reserved` threads, and as many tasks, take this lane's commands and no others.

        Raises: AppError.
        """
        if _name(name, "The lane") in self._lane_rules:
            raise AppError(f"The lane {name!r} is declared twice.", remedy="Keep one of them.")
        for what, value, least, most in (
            ("weight", weight, 1, _MOST_WEIGHT),
            ("reserved", reserved, 0, _MOST_RESERVED),
        ):
            whole(value, f"The lane {name!r}: {what}", least, most)
        self._lane_rules[name] = LaneRules(weight=weight, reserved=reserved)

    def require_lanes(self) -> None:
        """Raises: AppError when a lane was declared and no handler is in it."""
        for name in self._lane_rules:
            if name not in self.lanes:
                nearest = difflib.get_close_matches(name, self.lanes, n=1)
                raise AppError(
                    f"The lane {name!r} is declared, and no handler is in it.",
                    remedy=f"Did you mean {nearest[0]!r}?" if nearest else "Correct its name, or take it out.",
                )

    def tiers(self, lane: str) -> tuple[timedelta, ...]:
        """The delays of a lane's retry topics, shortest first: those of all its handlers together."""
        return tuple(sorted({d for h in self._handlers.values() if h.lane == lane for d in h.retry.delays}))

    def handler(
        self,
        command: type[Command],
        *,
        lane: str | None = None,
        retry: RetryPolicy | None = None,
        order: Order | None = None,
        mode: Mode = "transactional",
        batch_size: int | None = None,
        concurrency: int | None = None,
        destination: str | None = None,
        max_runtime: Duration | None = None,
        executor: Executor | None = None,
        item_stage: str | None = None,
        items: Callable[[Any], Iterable[str]] | None = None,
        transient: type[BaseException] | tuple[type[BaseException], ...] = (),
        permanent: type[BaseException] | tuple[type[BaseException], ...] = (),
        classify: Callable[[BaseException], Retry | Discard | Reject | None] | None = None,
    ) -> Callable[[Function], Function]:
        """Declare the decorated function, called as function(command, ctx), as the handler of `command`.

        With mode="batch" it is called as function(commands, ctx), with `batch_size` commands at most, 500 unless you say
        otherwise; see `BatchContext`.

        `lane` defaults to the one in the schema. `transient` and `permanent` are exception classes that this handler
        judges differently from `failures.classify`; `classify` is asked before them, and says with a Retry, Discard or Reject
        what an exception means, or None. The function itself is returned unchanged.

        A command of a run counts in `item_stage` when it succeeds or is given up on: with the item that it was published
        with, or with those that `items(command)` returns, for a command that stands for many.

        With `executor="process"` it is called in a child process: it may use a core for long, or die, and can be ended.

        Raises: AppError.
        """
        type_name = _command_name(command)
        if type_name in self._handlers:
            other = self._handlers[type_name].function
            raise AppError(
                f"{type_name} has a handler already, {name_of(other)}.",
                remedy="Keep one; to do two things, publish a second command from it.",
            )
        if type_name in self.ignores:
            raise AppError(
                f"{type_name} is in the app's ignores.", remedy="Take it out of ignores, or leave the handler out."
            )
        if _one_of(mode, _MODES, "mode") != "batch" and batch_size is not None:
            raise AppError(
                f"{type_name}: batch_size belongs to batch handlers.", remedy='Add mode="batch", or leave it out.'
            )
        if mode != "external" and destination is not None:
            raise AppError(
                f"{type_name}: destination belongs to external handlers.",
                remedy='Add mode="external", or leave it out.',
            )
        if mode != "external" and executor is not None and concurrency is not None:
            raise AppError(
                f"{type_name}: concurrency is not for child processes.", remedy="Say --processes, or leave it out."
            )
        runtime = self._max_runtime if max_runtime is None else duration(max_runtime, f"{type_name}: max_runtime")
        if mode == "external" and runtime is None:
            runtime = _DEFAULT_EXTERNAL_RUNTIME
        settled = functools.partial(
            Handler,
            command=command,
            lane=self._lane(lane or command.SCHEMA.lane, type_name),
            mode=mode,
            batch_size=_whole(batch_size, _DEFAULT_BATCH, f"{type_name}: batch_size"),
            order=self._order if order is None else _order(order),
            retry=self._retry if retry is None else _policy(retry),
            rules=Rules(
                transient=_kinds(transient, "transient"),
                permanent=_kinds(permanent, "permanent"),
                classify=_classifier(classify, type_name),
            ),
            concurrency=(calls := _whole(concurrency, _DEFAULT_CONCURRENCY, f"{type_name}: concurrency")),
            runners=None if mode == "external" or concurrency is None else calls,
            destination=_word(destination, f"{type_name}: destination"),
            max_runtime=runtime,
            executor=None if executor is None else _executor(executor),
            item_stage=_word(item_stage, f"{type_name}: item_stage"),
            items=_items(items, item_stage, type_name),
        )

        def declare(function: Function) -> Function:
            check_signature(function, command, mode)
            handler = settled(function=function, is_async=is_async(function))
            self._check_names(handler)
            self._handlers[type_name] = handler
            return function

        return declare

    def schedule(
        self, rule: str, *, tz: str = "UTC", catch_up: Duration | None = None, id: str | None = None
    ) -> Callable[[Function], Function]:
        """Declare the decorated function, called as function(tick), as what a schedule publishes.

        `id` defaults to the function's name. The scheduler checks the rule when it starts.

        Raises: AppError.
        """
        if not isinstance(rule, str) or not rule.strip():
            raise AppError(f"The rule is {rule!r:.40}.", remedy='Write a cron line, for instance "0 7 * * MON-FRI".')
        _check_zone(tz)
        window = None if catch_up is None else duration(catch_up, "catch_up")

        def declare(function: Function) -> Function:
            name = id or getattr(function, "__name__", "")
            if not name or name == "<lambda>":
                raise AppError("The schedule has no name.", remedy='Add id="...".')
            if name in self._schedules:
                raise AppError(
                    f"There are two schedules with the id {name!r}.", remedy='Give one of them another: id="...".'
                )
            if is_async(function) or not accepts(function, 1):
                raise AppError(
                    f"The schedule {name!r} cannot be called as {name_of(function)}(tick).",
                    remedy="Make it a plain function of one parameter that returns a command.",
                )
            self._schedules[name] = ScheduleDeclaration(
                id=name, rule=rule.strip(), tz=tz, catch_up=window, function=function
            )
            return function

        return declare

    def _item_stages(self) -> set[str]:
        return {handler.item_stage for handler in self._handlers.values() if handler.item_stage is not None}

    def _lane(self, lane: str, type_name: str) -> str:
        """Kafka takes names that differ only in dots and underscores for the same metric, and refuses the second."""
        _name(lane, f"{type_name}: the lane")
        for other in self.lanes:
            if other != lane and other.replace("_", ".") == lane.replace("_", "."):
                raise AppError(
                    f"The lanes {other!r} and {lane!r} differ only in dots and underscores.",
                    remedy="Kafka refuses the second topic; rename one.",
                )
        return lane

    def _check_names(self, handler: Handler) -> None:
        try:
            topics.dead_letter(handler.lane, self.name)
            for delay in handler.retry.delays:
                topics.tier(handler.lane, self.name, delay)
        except TopicNameError as error:
            raise AppError(
                f"{handler.type}: lane and app name together are too long for Kafka: {error.message}",
                remedy="Shorten the lane or the app's name.",
            ) from error


def _command_name(command: Any) -> str:
    schema = getattr(command, "SCHEMA", None)
    if not (isinstance(command, type) and issubclass(command, Command) and schema is not None):
        bare = inspect.isroutine(command)  # `@app.handler` without parentheses is given the function
        raise AppError(
            f"{command!r:.80} is not a command class.",
            remedy=f"{'Write @app.handler(Type). ' if bare else ''}Pass a class that `onceward schemas generate` made.",
        )
    return command.SCHEMA.name


def _type_names(names: Any) -> frozenset[str]:
    found = (names,) if isinstance(names, str) or not isinstance(names, Iterable) else tuple(names)
    for name in found:
        if not isinstance(name, str) or isinstance(names, str) or not _TYPE_NAME.fullmatch(name):
            raise AppError(f"ignores has {name!r:.80}.", remedy='Give full type names: ignores=("shop.Refund",).')
    return frozenset(found)


def _name(value: Any, what: str) -> str:
    try:
        return topics.checked(value if isinstance(value, str) else "")
    except TopicNameError as error:
        raise AppError(f"{what} is {value!r:.80}, which Kafka refuses.", remedy=error.remedy) from error


def _one_of(value: Any, allowed: tuple[str, ...], what: str) -> str:
    if value not in allowed:
        nearest = difflib.get_close_matches(str(value).lower(), allowed, n=1, cutoff=0.5)
        rest = f"Did you mean {nearest[0]!r}?" if nearest else f"Use one of {', '.join(map(repr, allowed))}."
        raise AppError(f"{what} is {value!r:.40}.", remedy=rest)
    return cast("str", value)


def _order(value: Any) -> Order:
    return cast("Order", _one_of(value, _ORDERS, "order"))


def _executor(value: Any) -> Executor:
    return cast("Executor", _one_of(value, _EXECUTORS, "executor"))


def _policy(value: Any) -> RetryPolicy:
    if not isinstance(value, RetryPolicy):
        raise AppError(f"retry is {value!r:.40}.", remedy="Pass exponential(...), fixed(...) or never.")
    return value


def _classifier(value: Any, type_name: str) -> Any:
    if value is not None and (not callable(value) or is_async(value) or not accepts(value, 1)):
        raise AppError(
            f"{type_name}: classify is {value!r:.60}.",
            remedy="Pass a plain function of one exception that returns a Retry, Discard, Reject or None.",
        )
    return value


def _ceiling(value: Any) -> Ceiling | None:
    if value is not None and not isinstance(value, Ceiling):
        raise AppError(f"dead_letters is {value!r:.60}.", remedy="Pass a Ceiling, or None for no ceiling.")
    return value


def _kinds(value: Any, what: str) -> tuple[type[BaseException], ...]:
    kinds = value if isinstance(value, tuple) else (value,)
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise AppError(f"{what} has {kind!r:.40}.", remedy="Pass an exception class or a tuple of them.")
    return kinds


def _items(
    items: Callable[[Any], Iterable[str]] | None, stage: str | None, type_name: str
) -> Callable[[Any], Iterable[str]] | None:
    if items is not None and stage is None:
        raise AppError(f"{type_name}: items are given without item_stage.", remedy="Name the stage that they count in.")
    if items is not None and not callable(items):
        raise AppError(f"{type_name}: items is {items!r:.40}.", remedy="Pass a function from a command to its items.")
    return items


def _whole(value: Any, default: int, what: str) -> int:
    return default if value is None else whole(value, what, 1, 10_000)


def _word(value: Any, what: str) -> str | None:
    """A name of the user's choosing, which becomes a column and a metric's label."""
    if value is not None and not (
        isinstance(value, str) and value.strip() and len(value) <= 200 and value.isprintable()
    ):
        raise AppError(f"{what} is {value!r:.40}.", remedy="Use 1 to 200 printable characters, or leave it out.")
    return value


def _check_zone(tz: Any) -> None:
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
        nearest = difflib.get_close_matches(str(tz), available_timezones(), n=1)
        hint = f"Did you mean {nearest[0]!r}?" if nearest else 'Use an IANA name like "Asia/Almaty".'
        raise AppError(f"{tz!r:.60} is not a time zone.", remedy=hint) from error
