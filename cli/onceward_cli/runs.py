"""`onceward runs`: follow bulk operations, see what failed and why, and retry only that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

import psycopg
import typer
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onceward_cli.output import Output, OutputOption, as_json, say, screen, show, show_one
from onceward_cli.people import user
from onceward_consumer.durations import duration
from onceward_consumer.run_progress import OPEN, RunProgress, RunState, failed_items, get, list_runs, stuck
from onceward_consumer.run_retry import retry_failed
from onceward_outbox_relay.status import outbox_status
from onceward_runtime import postgres, settings
from onceward_schemas.errors import RunError

app = typer.Typer(help="Follow bulk operations and retry what failed.", no_args_is_help=True)

_REFRESH_SECONDS = 0.5
_STILL = timedelta(minutes=5)
_LEAST = ("progressed_at", "created_at", "business_key", "failed", "stages")
"""What a narrow terminal can do without, in this order."""
_STATES: tuple[RunState, ...] = (*OPEN, "completed", "completed_with_errors")

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.")]
Stage = Annotated[str | None, typer.Option(help="Only this stage.")]


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Option(help="Only runs of this kind.")] = None,
    state: Annotated[str | None, typer.Option(help=f"One of {', '.join(_STATES)}, or stuck.")] = None,
    still_for: Annotated[str, typer.Option(help="With --state stuck: no progress for so long.")] = "5m",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 20,
    output: OutputOption = Output.TABLE,
) -> None:
    """List runs, the newest first."""
    with _connected() as connection:
        if state == "stuck":
            found = stuck(connection, duration(still_for, "--still-for"), limit=limit)
        else:
            found = list_runs(connection, kind=kind, states=_states(state), limit=limit)
    show([_line(run) for run in found], output, empty="No runs.", least=_LEAST)


@app.command("show")
def show_(
    run: RunId,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow it until it completes.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one run with its stages. With --watch, exits with 1 when it completed with errors."""
    run_id = _id(run)
    with _connected() as connection:
        found = get(connection, run_id)
        _say_what_is_missing(connection, found)
        if watch:
            found = _watched(connection, run_id, output)
        if not watch or output is Output.JSON:
            _print(found, output)
        if found.failed and output is Output.TABLE:
            say(f"{_counted(found.failed, 'item', 'items')} failed; `onceward runs failed {run_id}` says why.")
    if watch and found.failed:
        raise typer.Exit(1)


@app.command()
def failed(
    run: RunId,
    stage: Stage = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 100,
    output: OutputOption = Output.TABLE,
) -> None:
    """List a run's failed items, each with its reason."""
    with _connected() as connection:
        run_id = get(connection, _id(run)).id
        found = failed_items(connection, run_id, stage=stage, limit=limit + 1)
    rows = [
        {
            "stage": item.stage,
            "item": item.item,
            "why": item.explanation,
            "reason": item.reason,
            "command": item.command_id,
        }
        for item in found[:limit]
    ]
    show(rows, output, empty="No item has failed.", least=("reason", "stage"))
    if len(found) > limit:
        say(f"There are more than {limit}; see --limit.")


@app.command()
def retry(
    run: RunId,
    stage: Stage = None,
    because: Annotated[str | None, typer.Option(help="Why, for the record.")] = None,
    by: Annotated[str | None, typer.Option(help="Who decides, for the record. Defaults to user@host.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Retry a run's failed items, and nothing else. Exits with 1 when some cannot be."""
    with _connected() as connection:
        who = by or user()
        done = retry_failed(connection, _id(run), stage=stage, by=who, because=because)
    if output is Output.JSON:
        left = [{"stage": item.stage, "item": item.item, "reason": item.reason} for item in done.left]
        show_one({"retried_commands": done.commands, "left": left}, output)
    else:
        print(f"{_counted(done.commands, 'command is', 'commands are')} being retried.")
        if done.left:
            stay = _counted(len(done.left), "item stays", "items stay")
            say(f"{stay} failed, without an open dead letter to replay. See `onceward runs failed`.")
    if done.left:
        raise typer.Exit(1)


@contextmanager
def _connected() -> Iterator[psycopg.Connection[Any]]:
    with postgres.connect(settings.load(), application_name="onceward runs", autocommit=True) as connection:
        yield connection


def _say_what_is_missing(connection: psycopg.Connection[Any], run: RunProgress) -> None:
    """A run that no worker has begun may wait for nothing but a relay."""
    if run.state != "queued":
        return
    outbox = outbox_status(connection, settings.load().slot)
    if outbox.pending and outbox.relay is None:
        say(
            f"The run is queued: no relay is active, and {_counted(outbox.pending, 'row waits', 'rows wait')} in the outbox. Start one: `onceward relay`."
        )


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _watched(connection: psycopg.Connection[Any], run_id: UUID, output: Output) -> RunProgress:
    """Show the run as it goes, or in JSON wait for its end."""
    found = get(connection, run_id)
    if output is Output.JSON:
        while found.open:
            time.sleep(_REFRESH_SECONDS)
            found = get(connection, run_id)
        return found
    with Live(_view(found), console=screen(), refresh_per_second=4) as live:
        while found.open:
            time.sleep(_REFRESH_SECONDS)
            found = get(connection, run_id)
            live.update(_view(found))
    return found


def _print(run: RunProgress, output: Output) -> None:
    if output is Output.JSON:
        print(as_json(_fields(run)))
    else:
        screen().print(_view(run))


def _view(run: RunProgress) -> Group:
    head = Text.assemble(
        (run.kind, "bold"), "  ", (_state_in_words(run), _colour(run)), f"  {run.percent} %  ", str(run.id)
    )
    if run.business_key:
        head.append(f"  {run.business_key}", style="dim")
    table = Table(box=None, pad_edge=False, show_header=False)
    for stage in run.stages:
        words = f"{stage.processed}/{stage.expected}"
        if stage.failed:
            words += f"  {stage.failed} failed"
        if stage.retrying:
            words += f"  {stage.retrying} retrying"
        bar = ProgressBar(total=max(stage.expected, 1), completed=stage.processed if stage.expected else 1, width=40)
        table.add_row(stage.name, bar, words)
    return Group(head, table)


def _state_in_words(run: RunProgress) -> str:
    words = run.state.replace("_", " ")
    still = datetime.now(UTC) - run.progressed_at
    if run.open and still > _STILL:
        return f"{words}, but without progress for {timedelta(seconds=int(still.total_seconds()))}"
    return words


def _colour(run: RunProgress) -> str:
    return {"completed": "green", "completed_with_errors": "yellow", "running": "cyan"}.get(run.state, "")


def _line(run: RunProgress) -> dict[str, Any]:
    return {
        "id": run.id,
        "kind": run.kind,
        "business_key": run.business_key,
        "state": run.state,
        "percent": run.percent,
        "stages": ", ".join(f"{stage.name} {stage.processed}/{stage.expected}" for stage in run.stages),
        "failed": run.failed,
        "created_at": run.created_at,
        "progressed_at": run.progressed_at,
    }


def _fields(run: RunProgress) -> dict[str, Any]:
    stages = [
        {
            "name": stage.name,
            "expected": stage.expected,
            "done": stage.done,
            "failed": stage.failed,
            "retrying": stage.retrying,
            "percent": stage.percent,
        }
        for stage in run.stages
    ]
    rest = ("params", "follow_up_id", "created_by", "completed_at")
    return _line(run) | {"stages": stages} | {name: getattr(run, name) for name in rest}


def _states(state: str | None) -> list[RunState] | None:
    if state is None:
        return None
    for known in _STATES:
        if known == state:
            return [known]
    raise RunError(f"There is no state {state!r:.40}.", remedy=f"Use one of {', '.join(_STATES)}, or stuck.")


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        raise RunError(f"{text!r:.60} is no run id.", remedy="`onceward runs list` shows those there are.") from error
