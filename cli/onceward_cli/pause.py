"""`onceward pause`: let nothing of a lane, type, destination or tenant begin; what runs goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from onceward_cli.limit import AppName, Because, By, print_one
from onceward_cli.output import Output, OutputOption
from onceward_cli.people import user
from onceward_consumer import controls
from onceward_runtime import postgres, settings
from onceward_schemas.errors import LimitError

Lane = Annotated[str | None, typer.Option(help="The lane.")]
Type = Annotated[str | None, typer.Option("--type", help="The command's full name.")]
Destination = Annotated[str | None, typer.Option(help="The destination of external handlers.")]
Tenant = Annotated[str | None, typer.Option(help="The tenant.")]


def pause(
    because: Because,
    lane: Lane = None,
    type_: Type = None,
    destination: Destination = None,
    tenant: Tenant = None,
    app_name: AppName = None,
    by: By = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let nothing of it begin, within two seconds; what runs goes on. Commands wait, in order, at no cost in attempts."""
    scope = scope_of(lane, type_, destination, tenant)
    switch("pause", controls.pause, scope, app_name, by, because, output)


def switch(
    verb: str,
    change: Callable[..., bool],
    scope: str,
    app_name: str | None,
    by: str | None,
    because: str,
    output: Output,
) -> None:
    """Pause or resume a scope, and print what holds for it now.

    Raises: LimitError where it was so already.
    """
    with postgres.connect(settings.load(), application_name=f"onceward {verb}", autocommit=True) as connection:
        group = controls.group_of(connection, app_name)
        if not change(connection, group, scope, by=by or user(), because=because):
            already = "paused already" if verb == "pause" else "not paused"
            raise LimitError(f"{scope} of {group} is {already}.", remedy="See `onceward limit list`.")
        print_one(connection, group, scope, output)


def scope_of(lane: str | None, type_: str | None, destination: str | None, tenant: str | None) -> str:
    """The one that is named.

    Raises: LimitError where none is, or several are.
    """
    given = {"lane": lane, "type": type_, "destination": destination, "tenant": tenant}
    found = [f"{kind}:{name}" for kind, name in given.items() if name is not None]
    if len(found) != 1:
        said = " and ".join(found) if found else "Nothing"
        raise LimitError(
            f"{said} {'are' if found else 'is'} named.", remedy="Give one of --lane, --type, --destination, --tenant."
        )
    return found[0]
