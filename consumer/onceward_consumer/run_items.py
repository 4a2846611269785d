"""Items of runs as rows: pure, for the engine to write inside its own transaction in one statement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from uuid import UUID

from onceward_producer.options import check_text
from onceward_runtime.sql import query
from onceward_schemas.errors import InvalidCommandError

ItemState: TypeAlias = Literal["done", "failed", "retrying"]


class RunItem(NamedTuple):
    """What became of one item. Its identity is (run_id, stage, item); the rest says why and by which command."""

    run_id: UUID
    stage: str
    item: str
    state: ItemState
    reason: str | None = None
    error: str | None = None
    group: str | None = None
    command_id: UUID | None = None


def check_name(what: str, name: str) -> str:
    """Return the name of a stage or an item, which stands in an index.

    Raises: InvalidCommandError.
    """
    if not isinstance(name, str):
        raise InvalidCommandError(
            f"{what} is of type {type(name).__name__}.", field=what, remedy="Pass a string: str(value) makes one."
        )
    if not name:
        raise InvalidCommandError(f"{what} is empty.", field=what, remedy="Pass what tells it from the others.")
    check_text(what, name)
    return name


RECORD_ITEMS: Final = query("onceward_consumer", "run_items_record")
"""Takes what `arrays` returns. Done is final; everything else is replaced by what comes later."""


def arrays(items: Iterable[RunItem]) -> dict[str, list[Any]]:
    """Return the parameters of `RECORD_ITEMS`: each identity once, in one order for all workers, so none deadlock.

    >>> run = UUID(int=1)
    >>> given = [RunItem(run, "sent", "b", "done"), RunItem(run, "sent", "a", "failed"), RunItem(run, "sent", "b", "failed")]
    >>> arrays(given)["items"], arrays(given)["states"]
    (['a', 'b'], ['failed', 'done'])
    """
    last: dict[tuple[UUID, str, str], RunItem] = {}
    for item in items:
        known = last.get(item[:3])
        if known is None or known.state != "done":
            last[item[:3]] = item
    rows = [last[identity] for identity in sorted(last)]
    columns = ("run_ids", "stages", "items", "states", "reasons", "errors", "groups", "command_ids")
    return {name: [row[position] for row in rows] for position, name in enumerate(columns)}
