"""`onceward db`: the migrations of the schema `onceward`."""

from __future__ import annotations

from typing import Any

import typer

from onceward_cli.output import Output, OutputOption, say, show
from onceward_runtime import migrate, settings

app = typer.Typer(help="Plan, apply and check the migrations of the database.", no_args_is_help=True)


@app.command()
def plan(
    output: OutputOption = Output.TABLE,
    sql: bool = typer.Option(False, "--sql", help="Print the statements instead of the list."),
) -> None:
    """Show what `apply` would run. Changes nothing."""
    pending = migrate.plan(settings.load())
    if sql:
        for migration in pending:
            print(f"-- {migration}\n{migration.sql}")
        return
    show([_row(migration, "pending") for migration in pending], output, empty="The database is up to date.")


@app.command()
def apply(output: OutputOption = Output.TABLE) -> None:
    """Run what is pending. Several processes may do so at once."""
    done = migrate.apply(settings.load())
    show([_row(migration, "applied") for migration in done], output, empty="The database was up to date.")


@app.command()
def check(output: OutputOption = Output.TABLE) -> None:
    """Exit with 1 unless the database is as this version needs it."""
    migrate.check(settings.load())
    if output is Output.JSON:
        show([], output)
    else:
        say("The database is up to date.")


def _row(migration: migrate.Migration, state: str) -> dict[str, Any]:
    return {"number": migration.number, "name": migration.name, "state": state}
