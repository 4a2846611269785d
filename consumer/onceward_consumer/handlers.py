"""A handler and the rules it runs under, as the application declares them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, TypeAlias

from onceward_consumer.deadlines import ExpiredError, within
from onceward_consumer.failures import NO_RULES, OverrunError, Rules
from onceward_consumer.policy import RetryPolicy
from onceward_schemas.command import Command

Mode: TypeAlias = Literal["transactional", "batch", "external"]
Order: TypeAlias = Literal["retry", "strict", "none"]
Executor: TypeAlias = Literal["process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One command type's function and rules. Built by `App.handler`, which checks them."""

    command: type[Command]
    function: Callable[..., Any]
    """Called as function(command, ctx), a batch handler as function(commands, ctx); sync or async."""
    lane: str
    is_async: bool
    mode: Mode = "transactional"
    order: Order = "retry"
    retry: RetryPolicy
    rules: Rules = NO_RULES
    """Exception classes that the handler judges itself."""
    concurrency: int = 16
    """How many of an external handler's calls one worker makes at once."""
    runners: int | None = None
    """How many of a worker's threads or tasks run a transactional or batch handler at the same time; None: all."""
    batch_size: int = 500
    """How many commands a batch handler gets at once, at most."""
    destination: str | None = None
    """The name of what an external handler calls. It has a breaker, and may be limited (App.limit)."""
    max_runtime: timedelta | None = None
    executor: Executor | None = None
    """Where it is called: in a cell, a process of its own, or by default in the worker's."""
    item_stage: str | None = None
    """The run stage that this command's item counts in when the command carries a run id and an item."""
    items: Callable[[Any], Iterable[str]] | None = None
    """The run's items that this command stands for, where it is not the one that it was published with."""
    kind: str = field(init=False, repr=False, compare=False)
    """Which executor runs its commands; said once, since each delivery asks."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", _kind(self))

    @property
    def type(self) -> str:
        """The command's full name."""
        return self.command.SCHEMA.name


def _kind(handler: Handler) -> str:
    """Each external handler has an executor of its own, so that none waits for another's calls; a batch is of one type."""
    if handler.executor == "process" and handler.mode != "external":
        return cell_kind(handler)
    if handler.mode != "transactional":
        return f"{handler.mode} {handler.type}"
    shared = "async" if handler.is_async else "sync"
    return shared if handler.runners is None else f"{shared} {handler.type}"


def cell_kind(handler: Handler) -> str:
    """The executor of a handler's commands that are run in cells; external ones are called there, and nothing else."""
    if handler.mode != "transactional":
        return f"cell {handler.mode} {handler.type}"
    return "cell async" if handler.is_async else "cell sync"


async def call_within(handler: Handler, command: Any, context: Any) -> Any:
    """Call an asynchronous handler, and cancel it when its max_runtime is over. Returns what it returns.

    Raises: OverrunError; and what the handler raises.
    """
    if handler.max_runtime is None:
        return await handler.function(command, context)
    try:
        return await within(handler.max_runtime.total_seconds(), handler.function, command, context)
    except ExpiredError as error:
        raise OverrunError("max_runtime", f"It ran longer than its max_runtime, {handler.max_runtime}.") from error
