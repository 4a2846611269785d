"""`onceward scheduler`: emit the ticks of an application's schedules, and delayed commands that are due."""

from __future__ import annotations

from typing import Annotated

import typer

from onceward_cli.loading import load_app
from onceward_producer.default import codec_for
from onceward_runtime import log, migrate, settings
from onceward_runtime.health import HealthServer
from onceward_runtime.service import Service, run_until_signal
from onceward_scheduler.delayed import DelayedMover
from onceward_scheduler.scheduler import Scheduler


def scheduler(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The application, for instance hr.handlers:app.")],
) -> None:
    """Emit the ticks of an application's schedules, and delayed commands that are due.

    Start any number: they share the schedules out among them, and each tick is emitted once. An application without
    schedules needs one only for its delayed commands.
    """
    found = settings.load()
    log.configure(found)
    application = load_app(target)
    migrate.check(found)
    services: list[Service] = [DelayedMover(found)]
    if application.schedules:
        services.append(Scheduler(application, codec_for(found), found))
    raise typer.Exit(run_until_signal([HealthServer(found, services), *services]))
