"""`onceward topics`: the lanes, retry tiers and dead-letter topics of an application."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from onceward_cli.loading import load_app
from onceward_cli.output import Output, OutputOption, say, show
from onceward_consumer import topics
from onceward_runtime import settings

app = typer.Typer(help="Plan and create the topics of an application.", no_args_is_help=True)

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="The application, for instance hr.handlers:app.")]
Partitions = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=10_000,
        help=f"How many a lane should have. Defaults to {topics.DEFAULT_PARTITIONS} for new lanes; others stay.",
    ),
]


@app.command()
def plan(
    target: Target,
    partitions: Partitions = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 if something differs.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how the cluster differs from what the application needs. Changes nothing."""
    application = load_app(target)
    found = topics.plan(application, settings.load(), partitions)
    _show(found, output, empty=f"The topics of {application.name} are as they should be.")
    if check and any(difference.kind != "leftover" for difference in found):
        raise typer.Exit(1)


@app.command()
def apply(
    target: Target,
    partitions: Partitions = None,
    replication: Annotated[
        int | None, typer.Option(min=1, max=32, help="Of new topics. Defaults to the cluster's own.")
    ] = None,
    allow_repartition: Annotated[
        bool,
        typer.Option(
            "--allow-repartition",
            help="Grow lanes that exist. This moves keys to other partitions: stop publishing and let workers empty "
            "the lane first, or a key's new command may overtake an old one.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create and correct the topics. Several processes may do so at once; running it again changes nothing."""
    application = load_app(target)
    done = topics.apply(application, settings.load(), partitions, replication, allow_repartition=allow_repartition)
    rows = [{"topic": change.topic, "role": change.role, "done": _done(change)} for change in done]
    show(rows, output, empty=f"The topics of {application.name} were as they should be.")
    if done:
        say(f"{len(done)} {'change' if len(done) == 1 else 'changes'} made.")


def _done(change: topics.Difference) -> str:
    match change.kind:
        case "missing":
            return f"created with {change.partitions} partitions"
        case "few_partitions":
            return f"grown to {change.partitions} partitions"
        case _:
            return change.change or ""


def _show(found: Iterable[topics.Difference], output: Output, *, empty: str) -> None:
    rows = [
        {
            "topic": difference.topic,
            "role": difference.role,
            "problem": difference.says,
            "change": difference.change or ("none" if difference.kind == "leftover" else "decide by hand"),
            "moves_keys": difference.repartitions,
        }
        for difference in found
    ]
    show(rows, output, empty=empty)
