"""`onceward worker`: run the handlers of an application until told to stop."""

from __future__ import annotations

from typing import Annotated

import typer

from onceward_cli.loading import load_app
from onceward_consumer.housekeeping import Housekeeping
from onceward_consumer.run_keeper import RunKeeper
from onceward_consumer.worker import Worker, WorkerOptions
from onceward_runtime import log, settings
from onceward_runtime.health import HealthServer
from onceward_runtime.service import Service, run_until_signal

_DEFAULTS = WorkerOptions()


def worker(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The application, for instance hr.handlers:app.")],
    threads: Annotated[
        int, typer.Option(min=1, max=256, help="Connections that run synchronous handlers.")
    ] = _DEFAULTS.threads,
    tasks: Annotated[
        int, typer.Option(min=1, max=256, help="Connections that run asynchronous transactional handlers.")
    ] = _DEFAULTS.tasks,
    group_size: Annotated[
        int, typer.Option(min=1, max=1000, help="Commands in one transaction at most; 1 turns grouping off.")
    ] = _DEFAULTS.group_size,
    instance: Annotated[
        str | None,
        typer.Option(help="A name kept over restarts, one per worker: its partitions wait for it (static membership)."),
    ] = None,
) -> None:
    """Run the handlers of an application. SIGTERM finishes what has begun; a second one ends at once and loses nothing."""
    found = settings.load()
    log.configure(found)
    application = load_app(target)
    options = WorkerOptions(threads=threads, tasks=tasks, group_size=group_size, instance=instance)
    service = Worker(application, found, options)
    services: list[Service] = [service, RunKeeper(found), Housekeeping(found)]
    raise typer.Exit(run_until_signal([HealthServer(found, services), *services]))
