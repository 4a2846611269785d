"""`onceward schedules`: which schedules there are, when they fire next, and what became of their ticks."""

from __future__ import annotations

from typing import Annotated

import typer

from onceward_cli.database import connected
from onceward_cli.output import Output, OutputOption, show
from onceward_scheduler.history import schedules, ticks
from onceward_schemas.errors import AppError

app = typer.Typer(help="List schedules and their ticks.", no_args_is_help=True)

_OUTCOMES = ("emitted", "skipped", "failed")

AppName = Annotated[str | None, typer.Option("--app", help="Only this application's.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]


@app.command("list")
def list_(app_name: AppName = None, limit: Limit = 200, output: OutputOption = Output.TABLE) -> None:
    """List schedules with their next and last ticks, in UTC."""
    with connected("onceward schedules") as connection:
        found = schedules(connection, app=app_name, limit=limit)
    rows = [
        {
            "app": one.app,
            "id": one.id,
            "rule": one.rule,
            "time_zone": one.tz,
            "next": one.next_at,
            "last": one.last_at,
            "state": one.state,
        }
        for one in found
    ]
    show(
        rows,
        output,
        least=("state", "last", "app"),
        empty="No schedules. They are written down when `onceward scheduler` starts.",
    )


@app.command()
def history(
    schedule: Annotated[str | None, typer.Argument(metavar="[SCHEDULE]", help="The schedule's id.")] = None,
    app_name: AppName = None,
    outcome: Annotated[str | None, typer.Option(help=f"One of {', '.join(_OUTCOMES)}.")] = None,
    limit: Limit = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """List ticks, the latest first, each with its command or the reason why there is none."""
    if outcome is not None and outcome not in _OUTCOMES:
        raise AppError(f"There is no outcome {outcome!r:.40}.", remedy=f"Use one of {', '.join(_OUTCOMES)}.")
    with connected("onceward schedules") as connection:
        found = ticks(connection, app=app_name, schedule_id=schedule, outcome=outcome, limit=limit)
    rows = [
        {
            "app": one.app,
            "schedule": one.schedule_id,
            "scheduled_at": one.scheduled_at,
            "outcome": one.outcome,
            "reason": one.reason,
            "late_by_seconds": round((one.emitted_at - one.scheduled_at).total_seconds(), 3),
            "commands": one.command_ids,
        }
        for one in found
    ]
    show(rows, output, empty="No ticks.", least=("app", "late_by_seconds", "reason", "schedule"))
