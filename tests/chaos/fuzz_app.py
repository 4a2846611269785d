"""The group that gets spoiled records: transactional and external handlers, and a process for them.

`python -m tests.chaos.fuzz_app GROUP LANE GATEWAY`
"""

from __future__ import annotations

import os
import sys
from typing import Any

from onceward_consumer.app import App
from onceward_consumer.policy import fixed
from onceward_consumer.worker import Worker, WorkerOptions
from onceward_runtime import log, settings
from onceward_runtime.service import run_until_signal
from tests.chaos.fuzz import IGNORED
from tests.chaos.gateway import Gateway
from tests.chaos.handlers import INSERT
from tests.support.commands import Charge, Increment, Settle


def application(group: str, lane: str, gateway_path: str) -> App:
    """One lane with three types."""
    app = App(group, retry=fixed("100ms", attempts=2), ignores=(IGNORED,))
    gateway = Gateway(gateway_path)

    @app.handler(Increment, lane=lane)
    def increment(command: Increment, ctx: Any) -> None:
        ctx.connection.execute(INSERT, (ctx.command_id, command.counter, command.amount, ctx.attempt, os.getpid()))

    @app.handler(Charge, lane=lane)
    async def charge(command: Charge, ctx: Any) -> None:
        values = (ctx.command_id, command.payer.name, command.count, ctx.attempt, os.getpid())
        await ctx.connection.execute(INSERT, values)

    @app.handler(Settle, lane=lane, mode="external")
    async def settle(command: Settle, ctx: Any) -> None:
        gateway.call(ctx.idempotency_key, ctx.command_id, "", command.batch, ctx.attempt)

    return app


def main() -> int:
    found = settings.load()
    log.configure(found)
    return run_until_signal([Worker(application(*sys.argv[1:]), found, WorkerOptions(threads=2, tasks=2))])


if __name__ == "__main__":
    sys.exit(main())
