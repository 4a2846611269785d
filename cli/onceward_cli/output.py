"""What verbs print: results as a table or JSON on stdout, everything else on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import typer
from rich import box
from rich.cells import cell_len
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
_GAP = 3
"""Between two columns, the edges counted as one more."""
_ONE_LINE = ("error", "why")
"""Columns that end in an ellipsis where they do not fit; the rest of the text is in `show` and in JSON."""
_ONE_LINE_LEAST = 24


def screen(*, stderr: bool = False) -> Console:
    """Return a console for the stream as it is now. Markup is off: what is printed may come from a record."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, soft_wrap=False)


def headed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of a table with its columns under the names that the options use."""
    names = {"consumer_group": "app", "command_id": "id"}
    return {names.get(name, name): value for name, value in row.items()}


def show(
    rows: Iterable[Mapping[str, Any]],
    output: Output,
    *,
    empty: str = "Nothing.",
    title: str | None = None,
    least: Sequence[str] = (),
) -> None:
    """Print rows that have the same keys. JSON is one array, a table has the keys as its heads.

    A table that is too wide for the terminal leaves out the columns of `least`, the first one first; ids are never folded.
    """
    found = list(rows)
    if output is Output.JSON:
        print(as_json(found))
    elif not found:
        say(empty)
    else:
        console = screen()
        names = _fitting(found, least, console.width)
        console.print(_table(found, names, title, console.width))
        if left_out := [_head(name) for name in found[0] if name not in names]:
            say(f"Left out for want of room: {', '.join(left_out)}. A wider terminal or `--output json` shows all.")


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


def _fitting(rows: Sequence[Mapping[str, Any]], least: Sequence[str], width: int) -> list[str]:
    """The columns that stay: each of `least` goes while the others are still too wide."""
    names = list(rows[0])
    needed = {name: _width(rows, name) for name in names}
    needed |= {name: min(needed[name], _ONE_LINE_LEAST) for name in names if name in _ONE_LINE}
    for name in least:
        if sum(needed[each] + _GAP for each in names) <= width:
            break
        if name in names:
            names.remove(name)
    return names


def _table(rows: Sequence[Mapping[str, Any]], names: Sequence[str], title: str | None, width: int) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    others = sum(_width(rows, name) + _GAP for name in names if name not in _ONE_LINE)
    for name in names:
        values = [row.get(name) for row in rows]
        numbers = all(isinstance(value, int | float | None) for value in values)
        justify: Literal["left", "right"] = "right" if numbers else "left"
        if name in _ONE_LINE:
            most = max(_ONE_LINE_LEAST, width - others - _GAP)
            table.add_column(_head(name), no_wrap=True, overflow="ellipsis", max_width=most)
        elif any(_has_ids(value) for value in values):
            table.add_column(_head(name), no_wrap=True, min_width=_width(rows, name))
        else:
            table.add_column(_head(name), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(_shown(name, row.get(name)) for name in names))
    return table


def _shown(name: str, value: Any) -> Text:
    cell = _cell(value)
    if name in _ONE_LINE:
        return Text(" ".join(cell.plain.split()))
    return cell


def _width(rows: Sequence[Mapping[str, Any]], name: str) -> int:
    cells = (line for row in rows for line in _shown(name, row.get(name)).plain.splitlines())
    return max((cell_len(line) for line in (_head(name), *cells)), default=0)


def _has_ids(value: Any) -> bool:
    return isinstance(value, UUID) or (
        isinstance(value, list | tuple) and any(isinstance(each, UUID) for each in value)
    )


def _head(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: Any) -> Text:
    if value is None:
        return Text("")
    if isinstance(value, datetime):
        return Text(value.isoformat(sep=" ", timespec="seconds"))
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if _has_ids(value) and not isinstance(value, UUID):
        return Text("\n".join(str(each) for each in value))
    if isinstance(value, list | tuple | set | frozenset):
        return Text(", ".join(str(_cell(each)) for each in value))
    return Text(value if isinstance(value, str) else str(_plain(value)))
