"""`onceward parked`: commands that wait in PostgreSQL, why, and giving some up."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import typer

from onceward_cli.database import connected
from onceward_cli.output import Output, OutputOption, headed, say, show, show_one
from onceward_cli.people import user
from onceward_consumer import parked_decisions
from onceward_consumer.parked_decisions import Wanted
from onceward_schemas.errors import ParkedError

app = typer.Typer(help="Show commands that wait in PostgreSQL and why; give some up.", no_args_is_help=True)

_LEAST = ("attempt", "tenant", "app", "parked_at", "type")
"""What a narrow terminal can do without, in this order."""

AppName = Annotated[str | None, typer.Option("--app", "--group", help="The app, which is the consumer group.")]
Lane = Annotated[str | None, typer.Option(help="The lane.")]
Type = Annotated[str | None, typer.Option("--type", help="The command's full name.")]
Reason = Annotated[str | None, typer.Option(help="The reason, as `groups` shows it.")]
Key = Annotated[str | None, typer.Option(help="The key.")]
Tenant = Annotated[str | None, typer.Option(help="The tenant.")]


@app.command()
def groups(app_name: AppName = None, output: OutputOption = Output.TABLE) -> None:
    """Count parked commands by app, lane and reason; the largest heap first."""
    with connected("onceward parked") as connection:
        rows = [headed(asdict(heap)) for heap in parked_decisions.heaps(connection, app_name)]
    show(rows, output, empty="Nothing is parked.")


@app.command("list")
def list_(
    app_name: AppName = None,
    lane: Lane = None,
    type_: Type = None,
    reason: Reason = None,
    key: Key = None,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """List parked commands in the order of their arrival."""
    wanted = Wanted(group=app_name, lane=lane, type=type_, reason=reason, key=key, tenant=tenant)
    with connected("onceward parked") as connection:
        found = parked_decisions.find(connection, wanted, limit + 1)
    show([headed(asdict(each)) for each in found[:limit]], output, empty="Nothing is parked.", least=_LEAST)
    if len(found) > limit:
        say(f"There are more than {limit}; see --limit, or `onceward parked groups`.")


@app.command()
def discard(
    because: Annotated[str, typer.Option(help="Why, for the record.")],
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Command ids.")] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every one that fits the options.")] = False,
    app_name: AppName = None,
    lane: Lane = None,
    type_: Type = None,
    reason: Reason = None,
    key: Key = None,
    tenant: Tenant = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="With --all: the oldest so many.")] = None,
    by: Annotated[str | None, typer.Option(help="Who decides, for the record. Defaults to user@host.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give commands up; they end as discarded, and their keys go on. Followers (held) go on by themselves."""
    if bool(ids) == all_:
        raise ParkedError(
            "Both ids and --all are given." if ids else "No parked command is named.",
            remedy="Give ids, or --all with options that choose.",
        )
    wanted = Wanted(
        group=app_name, lane=lane, type=type_, reason=reason, key=key, tenant=tenant, ids=_ids(ids) if ids else None
    )
    if all_ and not yes:
        if not sys.stdin.isatty():
            raise ParkedError("This would give up all that fit.", remedy="Say so with --yes.")
        typer.confirm("Give up all that fit?", abort=True, err=True)
    with connected("onceward parked") as connection:
        given_up = parked_decisions.discard(connection, wanted, limit, by=by or user(), because=because)
    if output is Output.JSON:
        show_one({"discarded": given_up}, output)
    elif not given_up:
        raise ParkedError("No parked command fits.", remedy="See `onceward parked list`.")
    else:
        print(f"{len(given_up)} discarded; a worker ends them within half a minute.")


def _ids(texts: list[str]) -> list[UUID]:
    try:
        return [UUID(text) for text in texts]
    except ValueError:
        raise ParkedError("That is not an id.", remedy="Copy one from `onceward parked list`.") from None
