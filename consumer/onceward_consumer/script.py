"""What a transaction script may ask for. A script is a generator: it decides, and a driver carries out (design D10).

So the order of statements, calls and decisions is written once, and runs on a thread or on asyncio.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from onceward_consumer.items import Item

Result = TypeVar("Result")


STEERING: Final = (GeneratorExit, StopIteration, StopAsyncIteration)
"""What a script, or a future, would take for its own end if a handler raises it."""


class EscapedError(Exception):
    """A handler raised one of STEERING, which is its cause."""


class Statement(NamedTuple):
    """One statement and its parameters."""

    query: str
    params: Any


class Answer(Protocol):
    """What a statement returned."""

    @property
    def count(self) -> int:
        """Rows returned or changed."""

    @property
    def rows(self) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a transaction; `pipelined` sends what follows without waiting for each answer."""

    pipelined: bool


@dataclass(frozen=True, slots=True)
class Fetch:
    """Run statements in one round trip and give back a list of answers."""

    statements: list[Statement]


@dataclass(frozen=True, slots=True)
class Execute:
    """Run statements whose results nobody needs; in a pipeline they may still be under way at the next step."""

    statements: list[Statement]


@dataclass(frozen=True, slots=True)
class Call:
    """Call the handler. `savepoint` puts one around it, so that what it raises undoes only its own statements."""

    item: Item
    savepoint: bool
    batch: Sequence[Item] = ()
    """The commands of one call of a batch handler, `item` the first; of none it is called with `item` alone."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit, having seen that the transaction is whole."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """Undo everything and leave the pipeline."""


Step: TypeAlias = Begin | Fetch | Execute | Call | Commit | Rollback
Script: TypeAlias = Generator[Step, Any, Result]
