"""An application whose commands may kill the process that runs them, and worker processes of it.

Cells import it by name, so what it is made of stands in the environment: DEADLY_PREFIX, DEADLY_GROUP and DEADLY_MODE, which is
sync, async or external, and may begin with `process-`.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onceward_consumer.app import App
from onceward_consumer.failures import Reject, Retry
from onceward_consumer.policy import fixed
from onceward_consumer.worker import Worker, WorkerOptions
from onceward_runtime import log, settings
from onceward_runtime.service import run_until_signal
from tests.support.commands import Increment
from tests.support.consumers import Group, app_name, group_of
from tests.support.services import ROOT, Services

TARGET = "tests.support.deadly:app"
EFFECT = "create table effect (seq bigint generated always as identity, id uuid, counter text, amount int, attempt int, pid int)"
INSERT = "insert into effect (id, counter, amount, attempt, pid) values (%s, %s, %s, %s, %s)"
OPTIONS: dict[str, Any] = {
    "lease": timedelta(seconds=4),
    "session_timeout": timedelta(seconds=6),
    "transaction_timeout": timedelta(seconds=10),
    "idle_timeout": timedelta(seconds=10),
    "processes": 2,
}


def obey(command: Increment, ctx: Any) -> None:
    """Do what the command's note says."""
    match command.note:
        case "exit":
            os._exit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "segfault":
            ctypes.string_at(0)
        case "spin":
            while True:
                pass
        case "retry":
            raise Retry("not_yet")
        case "later" if ctx.attempt == 1:
            raise Retry("not_yet")
        case "reject":
            raise Reject("never")
        case "error":
            raise KeyError("no such counter")
        case "slow":
            time.sleep(0.2)


def values(command: Increment, ctx: Any) -> tuple[Any, ...]:
    """A row of effect."""
    return ctx.command_id, command.counter, command.amount, ctx.attempt, os.getpid()


def application(prefix: str, name: str, mode: str) -> App:
    """The group under test."""
    app = App(name)
    rules: dict[str, Any] = {"lane": f"{prefix}counter", "retry": fixed("300ms", attempts=3)}
    if mode.startswith("process-"):
        rules |= {"executor": "process", "max_runtime": "1s"}
        mode = mode.removeprefix("process-")
    if mode == "external":

        @app.handler(Increment, mode="external", concurrency=8, **rules)
        def outside(command: Increment, ctx: Any) -> None:
            obey(command, ctx)
            with psycopg.connect(settings.load().dsn, autocommit=True) as connection:
                connection.execute(INSERT, values(command, ctx))

    elif mode == "async":

        @app.handler(Increment, **rules)
        async def increment_async(command: Increment, ctx: Any) -> None:
            await ctx.connection.execute(INSERT, values(command, ctx))
            await asyncio.sleep(0.001)
            obey(command, ctx)

    else:

        @app.handler(Increment, **rules)
        def increment(command: Increment, ctx: Any) -> None:
            ctx.connection.execute(INSERT, values(command, ctx))
            obey(command, ctx)

    return app


def deadly_group(
    services: Services, dsn: str, prefix: str, mode: str, patch: pytest.MonkeyPatch, *, partitions: int = 4
) -> Group:
    """The group, and an environment in which cells and worker processes find it."""
    name = app_name(prefix)
    environment = {
        "DEADLY_PREFIX": prefix,
        "DEADLY_GROUP": name,
        "DEADLY_MODE": mode,
        "ONCEWARD_DATABASE_URL": dsn,
        "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS": services.bootstrap,
        "ONCEWARD_REGISTRY_URL": services.registry_url,
    }
    for variable, value in environment.items():
        patch.setenv(variable, value)
    group = group_of(application(prefix, name, mode), services, dsn, partitions=partitions)
    group.query(EFFECT)
    return group


class Workers:
    """Worker processes, with their logs."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.all: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """One more."""
        with (self._logs / f"worker-{len(self.all)}.log").open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.deadly"], cwd=ROOT, stdout=out, stderr=out, start_new_session=True
            )
        self.all.append(process)
        return process

    def log(self, number: int) -> str:
        """What one has written so far."""
        return (self._logs / f"worker-{number}.log").read_text()

    def killed(self) -> list[int]:
        """The exit codes of those that ended."""
        return [code for process in self.all if (code := process.poll()) is not None]

    def stop(self) -> None:
        """End the others, as an operator does."""
        for process in self.all:
            process.terminate()
        for process in self.all:
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


if "DEADLY_GROUP" in os.environ:
    app = application(os.environ["DEADLY_PREFIX"], os.environ["DEADLY_GROUP"], os.environ["DEADLY_MODE"])


def main() -> int:
    found = settings.load()
    log.configure(found)
    target = None if os.environ.get("DEADLY_NAMELESS") else TARGET
    return run_until_signal([Worker(app, found, WorkerOptions(**OPTIONS), cells=target)])


if __name__ == "__main__":
    sys.exit(main())
