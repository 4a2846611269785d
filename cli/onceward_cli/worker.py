"""`onceward worker`: run the handlers of an application until told to stop."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
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


class Protocol(Enum):
    """Kafka's two ways."""

    classic = "classic"
    consumer = "consumer"


def worker(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The application, for instance hr.handlers:app.")],
    threads: Annotated[
        int, typer.Option(min=1, max=256, help="Connections that run synchronous handlers.")
    ] = _DEFAULTS.threads,
    tasks: Annotated[
        int, typer.Option(min=1, max=256, help="Connections that run asynchronous transactional handlers.")
    ] = _DEFAULTS.tasks,
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Child processes for handlers with executor=process.")
    ] = _DEFAULTS.processes,
    group_size: Annotated[
        int, typer.Option(min=1, max=1000, help="Commands in one transaction at most; 1 turns grouping off.")
    ] = _DEFAULTS.group_size,
    protocol: Annotated[
        Protocol | None,
        typer.Option(help="How workers agree on partitions: classic, or consumer (KIP-848). Else as the settings say."),
    ] = None,
    instance: Annotated[
        str | None,
        typer.Option(help="A name kept over restarts, one per worker: its partitions wait for it (static membership)."),
    ] = None,
) -> None:
    """Run the handlers of an application. SIGTERM finishes what has begun; a second one ends at once and loses nothing."""
    found = settings.load()
    log.configure(found)
    application = load_app(target)
    options = WorkerOptions(threads=threads, tasks=tasks, processes=processes, group_size=group_size, instance=instance)
    if protocol is not None:
        options = replace(options, protocol="consumer" if protocol is Protocol.consumer else "classic")
    service = Worker(application, found, options, cells=target)
    services: list[Service] = [service, RunKeeper(found), Housekeeping(found)]
    raise typer.Exit(run_until_signal([HealthServer(found, services), *services]))
