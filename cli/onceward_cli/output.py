"""What verbs print: results as a table or JSON on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import Enum, StrEnum
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onceward_schemas.errors import OncewardError


class Output(StrEnum):
    """How a result is printed."""

    TABLE = "table"
    JSON = "json"


OutputOption = Annotated[Output, typer.Option("--output", "-o", help="How to print the result.")]

_PIPE_WIDTH = 200
"""Of a table that no terminal bounds."""


def screen(*, stderr: bool = False) -> Console:
    """Return a console for the stream as it is now. Markup is off: what is printed may come from a record."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, soft_wrap=False)


def show(
    rows: Iterable[Mapping[str, Any]], output: Output, *, empty: str = "Nothing.", title: str | None = None
) -> None:
    """Print rows that have the same keys. JSON is one array, a table has the keys as its heads."""
    found = list(rows)
    if output is Output.JSON:
        print(as_json(found))
    elif not found:
        say(empty)
    else:
        screen().print(_table(found, title))


def show_one(fields: Mapping[str, Any], output: Output, *, title: str | None = None) -> None:
    """Print one thing: a JSON object, or a table of names and values."""
    if output is Output.JSON:
        print(as_json(fields))
        return
    table = Table(title=title, box=None, show_header=False, title_justify="left", pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(_head(name), _cell(value))
    screen().print(table)


def say(message: str) -> None:
    """Tell the person something; never part of the result."""
    screen(stderr=True).print(message, soft_wrap=True)


def say_error(error: OncewardError) -> None:
    """Say what is so and what to do about it."""
    console = screen(stderr=True)
    console.print(Text("Error: ", style="bold red") + Text(error.message), soft_wrap=True)
    if error.remedy is not None:
        console.print(error.remedy, soft_wrap=True)


def as_json(value: Any) -> str:
    """Return indented JSON. Instants are ISO 8601, durations seconds, ids and other values text."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return str(value)


def _table(rows: Sequence[Mapping[str, Any]], title: str | None) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in rows[0]:
        numbers = all(isinstance(row.get(name), int | float | None) for row in rows)
        table.add_column(_head(name), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row.get(name)) for name in rows[0]))
    return table


def _head(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: Any) -> Text:
    if value is None:
        return Text("")
    if isinstance(value, datetime):
        return Text(value.isoformat(sep=" ", timespec="seconds"))
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if isinstance(value, list | tuple | set | frozenset):
        return Text(", ".join(str(_cell(each)) for each in value))
    return Text(value if isinstance(value, str) else str(_plain(value)))
