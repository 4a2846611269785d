"""`onceward limit`: limits that hold over all workers, changed while they run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import psycopg
import typer

from onceward_cli.database import connected
from onceward_cli.output import Output, OutputOption, headed, say, show, show_one
from onceward_cli.people import user
from onceward_consumer import controls
from onceward_consumer.controls import Shown
from onceward_consumer.limits import Override
from onceward_schemas.errors import LimitError

app = typer.Typer(help="Set, clear and list limits while workers run.", no_args_is_help=True)

_LEAST = ("updated_at", "set_by", "wanted", "open_until", "app", "because")
"""What a narrow terminal can do without, in this order."""

Scope = Annotated[
    str, typer.Argument(metavar="SCOPE", help="lane:NAME, type:NAME, destination:NAME, tenant:NAME, or tenant:*.")
]
AppName = Annotated[str | None, typer.Option("--app", "--group", help="The app. Not needed where there is only one.")]
Because = Annotated[str, typer.Option(help="Why, for the record.")]
By = Annotated[str | None, typer.Option(help="Who decides, for the record. Defaults to user@host.")]


@app.command("set")
def set_(
    scope: Scope,
    because: Because,
    concurrency: Annotated[
        str | None, typer.Option(help="Calls at the same time over all workers; 0 for none, off for no limit.")
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Calls in a period: 600/m, 10/s; off for no limit.")] = None,
    breaker: Annotated[str | None, typer.Option(help="A destination's breaker: on (as declared), or off.")] = None,
    app_name: AppName = None,
    by: By = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set a limit over what the app declares; workers see it within two seconds. What is not given stays."""
    with connected("onceward limit") as connection:
        group = controls.group_of(connection, app_name)
        controls.set_limit(
            connection,
            group,
            scope,
            by=by or user(),
            because=because,
            concurrency=_number(concurrency),
            rate=rate,
            breaker=_breaker(breaker),
        )
        print_one(connection, group, scope, output)


@app.command()
def clear(
    scope: Scope, because: Because, app_name: AppName = None, by: By = None, output: OutputOption = Output.TABLE
) -> None:
    """Go back to what the app declares. A pause stays: see `onceward resume`."""
    with connected("onceward limit") as connection:
        group = controls.group_of(connection, app_name)
        if not controls.clear_limit(connection, group, scope, by=by or user(), because=because):
            raise LimitError(f"Nothing is set for {scope} of {group}.", remedy="See `onceward limit list`.")
        _print(controls.show(connection, group), scope, output)


@app.command("list")
def list_(
    app_name: AppName = None,
    history: Annotated[bool, typer.Option("--history", help="What was changed, by whom and why.")] = False,
    scope: Annotated[str | None, typer.Option(help="Only this scope.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="With --history: how many at most.")] = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what the app declares, what is set over it, what workers do under each limit, and the breakers."""
    with connected("onceward limit") as connection:
        if history:
            changes = controls.history(connection, app_name, scope, limit)
            rows = [headed({name: getattr(each, name) for name in each.__dataclass_fields__}) for each in changes]
            show(rows, output, empty="Nothing was changed.", least=("app", "before"))
            return
        found = [each for each in controls.show(connection, app_name) if scope is None or each.scope == scope]
    show([_line(each) for each in found], output, empty="No limits are set, and no worker has met one.", least=_LEAST)


def print_one(connection: psycopg.Connection[Any], group: str, scope: str, output: Output) -> None:
    """Print a limit as it is now, and a doubt where its name may be a slip."""
    _print(controls.show(connection, group), scope, output)
    if doubt := controls.doubt(connection, group, scope):
        say(doubt)


def _print(found: list[Shown], scope: str, output: Output) -> None:
    for each in found:
        if each.scope == scope:
            show_one(_line(each), output)
            return
    if output is Output.JSON:
        show_one({"scope": scope, "limit": None}, output)
    else:
        say(f"Nothing is set for {scope}; what the app declares holds.")


def _line(each: Shown) -> dict[str, Any]:
    concurrency: int | str | None = each.concurrency
    if concurrency == Override.NO_CONCURRENCY:
        concurrency = Override.OFF
    return {
        "app": each.consumer_group,
        "scope": each.scope,
        "declared": each.declared,
        "paused": each.paused,
        "concurrency": concurrency,
        "rate": each.rate,
        "leased": each.permits,
        "wanted": each.wanted,
        "breaker": Override.OFF if each.breaker_off else each.breaker,
        "open_until": each.open_until,
        "reason": each.reason,
        "because": each.because,
        "set_by": each.set_by,
        "updated_at": each.updated_at,
    }


def _number(value: str | None) -> int | Literal["off"] | None:
    if value is None or value == Override.OFF:
        return None if value is None else "off"
    if not value.isdecimal():
        raise LimitError(f"--concurrency is {value!r:.40}.", remedy="Give a whole number, or off.")
    return int(value)


def _breaker(value: str | None) -> Literal["on", "off"] | None:
    match value:
        case None:
            return None
        case "on":
            return "on"
        case "off":
            return "off"
    raise LimitError(f"--breaker is {value!r:.40}.", remedy="Say on or off.")
