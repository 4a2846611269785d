"""One application for every way to run a handler: what a command asks for happens, in whatever mode it is handled.

Child processes import it by a name that says all: `tests.support.execution_modes:APP`, with APP as `worker` writes it.
`python -m tests.support.execution_modes PREFIX NAME...` is a process with a worker for each, to be killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import psycopg

from onceward_consumer.app import App
from onceward_consumer.failures import Discard, Reject, Retry
from onceward_consumer.handlers import Executor, Order
from onceward_consumer.handlers import Mode as HandlerMode
from onceward_consumer.policy import fixed
from onceward_consumer.worker import Worker, WorkerOptions
from onceward_runtime import log, settings
from onceward_runtime.service import run_until_signal
from onceward_schemas.avsc import command_schema
from onceward_schemas.command import Command, CommandSchema

TABLES = """
create table effect (seq bigint generated always as identity, key text, number int, attempt int, cause uuid);
create table called (key text, number int, attempt int);
create function to_the_lane() returns trigger language plpgsql as $$
begin new.topic := '{prefix}' || new.tenant; return new; end $$;
create trigger to_the_lane before insert on onceward.outbox for each row when (new.topic = 'modes')
execute function to_the_lane();
"""
"""Follow-ups go to the lane of their mode, which is their tenant."""
_INSERT = "insert into effect (key, number, attempt, cause) values (%s, %s, %s, %s)"
_INSERT_ALL = "insert into effect (key, number, attempt, cause) select * from unnest(%s::text[], %s::int[], %s::int[], %s::uuid[])"
DSN = "CONFORMANCE_DSN"
"""The variable that says where effects are noted which are in no transaction of the ledger's."""
_HANG = "CONFORMANCE_HANG"
_SEPARATOR = "__"


@dataclass(frozen=True)
class Mode:
    """A way to run handlers."""

    name: str
    mode: HandlerMode
    is_async: bool
    executor: Executor | None = None
    group_size: int = 100

    @property
    def external(self) -> bool:
        """Whether an effect may be outside of the ledger's transaction."""
        return self.mode == "external"


MODES = (
    Mode("grouped", "transactional", is_async=False),
    Mode("grouped_async", "transactional", is_async=True),
    Mode("alone", "transactional", is_async=False, group_size=1),
    Mode("alone_async", "transactional", is_async=True, group_size=1),
    Mode("batch", "batch", is_async=False),
    Mode("batch_async", "batch", is_async=True),
    Mode("external", "external", is_async=False),
    Mode("external_async", "external", is_async=True),
    Mode("process", "transactional", is_async=False, executor="process"),
    Mode("process_batch", "batch", is_async=False, executor="process"),
    Mode("process_external", "external", is_async=True, executor="process"),
)


def _schema(name: str) -> CommandSchema:
    return command_schema(
        """
{
  "type": "record",
  "name": "NAME",
  "namespace": "modes",
  "onceward": {"version": 1, "lane": "modes", "key": "key", "aggregate": "mode"},
  "fields": [
    {"name": "key", "type": ["null", "string"]},
    {"name": "number", "type": "int"},
    {"name": "does", "type": "string", "default": ""}
  ]
}
""".replace("NAME", name)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InOrder(Command):
    """Its followers wait while it is retried."""

    key: str | None
    number: int
    does: str = ""

    SCHEMA: ClassVar[CommandSchema] = _schema("InOrder")


@dataclass(frozen=True, slots=True, kw_only=True)
class Strictly(Command):
    """Its followers wait for the operator, too."""

    key: str | None
    number: int
    does: str = ""

    SCHEMA: ClassVar[CommandSchema] = _schema("Strictly")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loosely(Command):
    """Nobody waits for it."""

    key: str | None
    number: int
    does: str = ""

    SCHEMA: ClassVar[CommandSchema] = _schema("Loosely")


ORDERS: dict[type[Command], Order] = {InOrder: "retry", Strictly: "strict", Loosely: "none"}


def outcome(command: Any, ctx: Any) -> Exception | None:
    """What the handler says of the command."""
    match command.does, ctx.attempt:
        case ("retry twice", 1 | 2) | ("retry once", 1):
            return Retry("not_yet")
        case "retry", _:
            return Retry("never_yet")
        case "reject once", 1:
            return Reject("not_like_this")
        case "reject", _:
            return Reject("never")
        case "discard", _:
            return Discard("no_longer")
    return None


def mishap(command: Any, ctx: Any) -> None:
    """Raise what the command asks for."""
    match command.does, ctx.attempt:
        case "connection once", 1:
            raise ConnectionError("no route")
        case "bug", _:
            raise KeyError("a bug")


def follow(command: Any, ctx: Any) -> None:
    """Publish what the command asks for."""
    if command.does == "publish and retry once":
        ctx.publish(InOrder(key=f"{command.key}-next", number=ctx.attempt))
        if ctx.attempt == 1:
            raise Retry("not_yet")


def pause(command: Any, ctx: Any) -> float:
    """Seconds that the call takes."""
    if command.does == "hang" and os.environ.get(_HANG):
        outside(
            "insert into called (key, number, attempt) values (%s, %s, %s)", command.key, command.number, ctx.attempt
        )
        return 60.0
    return 0.02 if command.does == "slow" else 0.0


def values(command: Any, ctx: Any) -> tuple[Any, ...]:
    return command.key, command.number, ctx.attempt, ctx.envelope.context.causation_id


def outside(statement: str, *parameters: Any) -> None:
    """A statement that no rollback undoes."""
    with psycopg.connect(os.environ[DSN], autocommit=True) as connection:
        connection.execute(statement, parameters)


def judge(command: Any, ctx: Any) -> None:
    """Do everything but the effect, and raise what is not done."""
    mishap(command, ctx)
    follow(command, ctx)
    if (said := outcome(command, ctx)) is not None:
        raise said


def transactional(command: Any, ctx: Any) -> None:
    ctx.connection.execute(_INSERT, values(command, ctx))
    time.sleep(pause(command, ctx))
    judge(command, ctx)


async def transactional_async(command: Any, ctx: Any) -> None:
    await ctx.connection.execute(_INSERT, values(command, ctx))
    await asyncio.sleep(pause(command, ctx))
    judge(command, ctx)


def _all(commands: Sequence[Any], ctx: Any) -> list[list[Any]]:
    return [list(column) for column in zip(*map(values, commands, ctx.items), strict=True)]


def _judged(commands: Sequence[Any], ctx: Any) -> list[Exception | None]:
    for command, item in zip(commands, ctx.items, strict=True):
        mishap(command, item)
        follow(command, item)
    return list(map(outcome, commands, ctx.items))


def batch(commands: Sequence[Any], ctx: Any) -> list[Exception | None]:
    ctx.connection.execute(_INSERT_ALL, _all(commands, ctx))
    time.sleep(sum(map(pause, commands, ctx.items)))
    return _judged(commands, ctx)


async def batch_async(commands: Sequence[Any], ctx: Any) -> list[Exception | None]:
    await ctx.connection.execute(_INSERT_ALL, _all(commands, ctx))
    await asyncio.sleep(sum(map(pause, commands, ctx.items)))
    return _judged(commands, ctx)


def external(command: Any, ctx: Any) -> None:
    time.sleep(pause(command, ctx))
    judge(command, ctx)
    outside(_INSERT, *values(command, ctx))


async def external_async(command: Any, ctx: Any) -> None:
    await asyncio.sleep(pause(command, ctx))
    judge(command, ctx)
    await asyncio.to_thread(outside, _INSERT, *values(command, ctx))


_FUNCTIONS: dict[tuple[HandlerMode, bool], Callable[..., Any]] = {
    ("transactional", False): transactional,
    ("transactional", True): transactional_async,
    ("batch", False): batch,
    ("batch", True): batch_async,
    ("external", False): external,
    ("external", True): external_async,
}


def application(name: str, prefix: str, mode: Mode) -> App:
    """A handler in this mode for each order."""
    app = App(name, ignores=("modes.Ignored",))
    for command, order in ORDERS.items():
        app.handler(
            command,
            lane=f"{prefix}{mode.name}",
            mode=mode.mode,
            executor=mode.executor,
            order=order,
            retry=fixed("200ms", attempts=3),
            item_stage="done",
        )(_FUNCTIONS[mode.mode, mode.is_async])
    return app


def __getattr__(name: str) -> App:
    parts = name.split(_SEPARATOR)
    found = {mode.name: mode for mode in MODES}.get(parts[0])
    if found is None or len(parts) != 3:
        raise AttributeError(name)
    return application(parts[1], parts[2], found)


def worker(app: App, found: settings.Settings, prefix: str, mode: Mode, **options: Any) -> Worker:
    """A worker of the application."""
    given: dict[str, Any] = {"group_size": mode.group_size, "processes": 1, "lease": timedelta(seconds=4)} | options
    cells = None
    if mode.executor is not None:
        cells = f"tests.support.execution_modes:{_SEPARATOR.join((mode.name, app.name, prefix))}"
    return Worker(app, found, WorkerOptions(**given), cells=cells)


def main(prefix: str, names: Iterable[str]) -> int:
    """All workers in one process; commands that hang do so."""
    os.environ[_HANG] = "yes"
    found = settings.load()
    log.configure(found)
    workers = []
    for name in names:
        mode = next(each for each in MODES if name.endswith(f".{each.name}"))
        workers.append(worker(application(name, prefix, mode), found, prefix, mode, instance="one"))
    return run_until_signal(workers)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
