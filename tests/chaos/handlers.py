"""The group under attack: one handler for each way to run one. To add a way, write its function and enter it in MODES.

A handler makes its effect first and fails afterwards, so that an effect that outlives its failure is seen.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from onceward_consumer.app import App
from onceward_consumer.failures import Reject, Retry
from onceward_consumer.handlers import Order
from onceward_consumer.policy import exponential
from tests.chaos.gateway import Gateway
from tests.chaos.plan import Stage
from tests.support.commands import Increment

ATTEMPTS: Final = 10
"""More than one command has of failures and of killed workers together."""
INSERT: Final = "insert into chaos.effects (id, key, number, attempt, pid) values (%s, %s, %s, %s, %s)"
INSERT_ALL: Final = """
insert into chaos.effects (id, key, number, attempt, pid)
select * from unnest(%s::uuid[], %s::text[], %s::bigint[], %s::int[], %s::int[])"""


@dataclass(frozen=True, slots=True)
class Mode:
    """A way to run a handler."""

    declare: Callable[[App, Stage, dict[str, Any]], None]
    external: bool = False
    """Its effects are calls of the gateway instead of rows."""
    options: tuple[tuple[str, Any], ...] = ()
    """Of its workers."""
    cells: bool = False
    """Its handlers run in child processes."""


def application(stage: Stage) -> App:
    """The app of a trial."""
    app = App(stage.group)
    rules: dict[str, Any] = {
        "lane": stage.lane,
        "order": cast("Order", stage.plan.order),
        "retry": exponential("100ms", "400ms", attempts=ATTEMPTS),
    }
    MODES[stage.plan.mode].declare(app, stage, rules)
    return app


def _synchronous(app: App, stage: Stage, rules: dict[str, Any]) -> None:
    @app.handler(Increment, **rules)
    def increment(command: Increment, ctx: Any) -> None:
        ctx.connection.execute(INSERT, _values(command, ctx))
        time.sleep(stage.plan.work_seconds)
        _fail(stage, command, ctx)


def _asynchronous(app: App, stage: Stage, rules: dict[str, Any]) -> None:
    @app.handler(Increment, **rules)
    async def increment(command: Increment, ctx: Any) -> None:
        await ctx.connection.execute(INSERT, _values(command, ctx))
        await asyncio.sleep(stage.plan.work_seconds)
        _fail(stage, command, ctx)


def _batch(app: App, stage: Stage, rules: dict[str, Any]) -> None:
    @app.handler(Increment, mode="batch", **rules)
    def increment(commands: Sequence[Increment], ctx: Any) -> list[Exception | None]:
        ctx.connection.execute(INSERT_ALL, _columns(commands, ctx))
        time.sleep(stage.plan.work_seconds * len(commands))
        return [_failure(stage, command, item) for command, item in zip(commands, ctx.items, strict=True)]


def _batch_asynchronous(app: App, stage: Stage, rules: dict[str, Any]) -> None:
    """This one raises, so that the engine has to find out for which command."""

    @app.handler(Increment, mode="batch", **rules)
    async def increment(commands: Sequence[Increment], ctx: Any) -> None:
        await ctx.connection.execute(INSERT_ALL, _columns(commands, ctx))
        await asyncio.sleep(stage.plan.work_seconds * len(commands))
        for command, item in zip(commands, ctx.items, strict=True):
            _fail(stage, command, item)


def _process(app: App, stage: Stage, rules: dict[str, Any]) -> None:
    _synchronous(app, stage, rules | {"executor": "process"})


def _process_external(app: App, stage: Stage, rules: dict[str, Any]) -> None:
    _external_synchronous(app, stage, rules | {"executor": "process"})


def _external(app: App, stage: Stage, rules: dict[str, Any]) -> None:
    gateway = Gateway(stage.gateway)

    @app.handler(Increment, mode="external", concurrency=32, **rules)
    async def increment(command: Increment, ctx: Any) -> None:
        await asyncio.sleep(stage.plan.work_seconds)
        _fail(stage, command, ctx)
        gateway.call(ctx.idempotency_key, ctx.command_id, command.counter, command.amount, ctx.attempt)


def _external_synchronous(app: App, stage: Stage, rules: dict[str, Any]) -> None:
    gateway = Gateway(stage.gateway)

    @app.handler(Increment, mode="external", **rules)
    def increment(command: Increment, ctx: Any) -> None:
        time.sleep(stage.plan.work_seconds)
        _fail(stage, command, ctx)
        gateway.call(ctx.idempotency_key, ctx.command_id, command.counter, command.amount, ctx.attempt)


MODES: Final[dict[str, Mode]] = {
    "transactional": Mode(_synchronous),
    "single": Mode(_synchronous, options=(("group_size", 1),)),
    "async": Mode(_asynchronous),
    "batch": Mode(_batch),
    "batch-async": Mode(_batch_asynchronous),
    "process": Mode(_process, cells=True),
    "external": Mode(_external, external=True),
    "external-sync": Mode(_external_synchronous, external=True),
    "process-external": Mode(_process_external, external=True, cells=True),
}


def _values(command: Increment, ctx: Any) -> tuple[Any, ...]:
    return ctx.command_id, command.counter, command.amount, ctx.attempt, os.getpid()


def _columns(commands: Sequence[Increment], ctx: Any) -> list[list[Any]]:
    return [list(column) for column in zip(*map(_values, commands, ctx.items), strict=True)]


def _fail(stage: Stage, command: Increment, ctx: Any) -> None:
    failure = _failure(stage, command, ctx)
    if failure is not None:
        raise failure


def _failure(stage: Stage, command: Increment, ctx: Any) -> Exception | None:
    fate = stage.plan.fate(command.counter, command.amount)
    if ctx.attempt <= fate.failures or fate.ending == "exhausted":
        return Retry("not_yet") if command.amount % 2 else ConnectionError("not yet")
    if fate.ending == "rejected":
        return Reject("never")
    return KeyError("never") if fate.ending == "broken" else None
