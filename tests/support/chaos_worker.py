"""A worker process to be killed and frozen: `python -m tests.support.chaos_worker PREFIX GROUP MODE SECONDS`.

Its handler fails for 5 in 100 commands for a while and for 1 in 200 for good, always the same ones. It takes SECONDS.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import psycopg

from onceward_consumer.app import App
from onceward_consumer.failures import Reject, Retry
from onceward_consumer.policy import fixed
from onceward_consumer.worker import Worker, WorkerOptions
from onceward_runtime import log, settings
from onceward_runtime.service import run_until_signal
from tests.support.commands import Increment

EFFECT = "create table effect (seq bigint generated always as identity, id uuid, counter text, amount int, attempt int, pid int)"
INSERT = "insert into effect (id, counter, amount, attempt, pid) values (%s, %s, %s, %s, %s)"


def is_rejected(amount: int) -> bool:
    """Whether the handler gives the command up."""
    return amount % 200 == 77


def _fail(command: Increment, ctx: Any) -> None:
    if is_rejected(command.amount):
        raise Reject("never")
    if command.amount % 20 == 3 and ctx.attempt < 3:
        raise Retry("not_yet")


def application(prefix: str, name: str, mode: str, seconds: float = 0.0) -> App:
    """The group under test; MODE is sync, async or external."""
    app = App(name)
    lane, retry = f"{prefix}counter", fixed("500ms", attempts=4)

    def values(command: Increment, ctx: Any) -> tuple[Any, ...]:
        return ctx.command_id, command.counter, command.amount, ctx.attempt, os.getpid()

    if mode == "sync":

        @app.handler(Increment, lane=lane, retry=retry)
        def increment(command: Increment, ctx: Any) -> None:
            ctx.connection.execute(INSERT, values(command, ctx))
            time.sleep(seconds)
            _fail(command, ctx)

    elif mode == "async":

        @app.handler(Increment, lane=lane, retry=retry)
        async def increment_async(command: Increment, ctx: Any) -> None:
            await ctx.connection.execute(INSERT, values(command, ctx))
            await asyncio.sleep(seconds)
            _fail(command, ctx)

    else:

        @app.handler(Increment, lane=lane, retry=retry, mode="external", concurrency=32)
        async def increment_outside(command: Increment, ctx: Any) -> None:
            await asyncio.sleep(seconds)
            _fail(command, ctx)
            await _gateway(values(command, ctx))

    return app


async def _gateway(values: tuple[Any, ...]) -> None:
    """A gateway that notes each request, repeats included."""
    async with await psycopg.AsyncConnection.connect(settings.load().dsn, autocommit=True) as connection:
        await connection.execute(INSERT, values)


def main() -> int:
    faulthandler.register(signal.SIGUSR1)
    prefix, name, mode, seconds = sys.argv[1:]
    found = settings.load()
    log.configure(found)
    options = WorkerOptions(
        lease=timedelta(seconds=4),
        session_timeout=timedelta(seconds=6),
        transaction_timeout=timedelta(seconds=4),
        idle_timeout=timedelta(seconds=4),
    )
    return run_until_signal([Worker(application(prefix, name, mode, float(seconds)), found, options)])


if __name__ == "__main__":
    sys.exit(main())
