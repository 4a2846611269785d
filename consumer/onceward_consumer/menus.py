"""What one runner serves: single commands in groups, and those of each batch handler in batches, taking turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onceward_consumer.deliveries import Kind, kind_of
from onceward_consumer.handlers import Handler, cell_kind
from onceward_consumer.pace import BATCH_SECONDS, Pace


class Menu:
    """The kinds of one runner, whoever was served last at the end, and how large a group of each may be."""

    def __init__(self, paces: Mapping[Kind, Pace]) -> None:
        self._paces = dict(paces)
        self.most: dict[Kind, Callable[[int], int]] = {kind: pace.most for kind, pace in self._paces.items()}
        """By kind: the largest group when so many commands wait for a runner."""

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """In the order in which they are to be looked at."""
        return tuple(self.most)

    def note(self, kind: Kind, count: int, seconds: float) -> None:
        """A group of `count` took so long, and it is the others' turn."""
        self._paces[kind].note(count, seconds)
        self.most[kind] = self.most.pop(kind)


def menu_here(handlers: Mapping[str, Handler], *, is_async: bool, group_size: int) -> Menu:
    """That of a thread or task of the worker. Unreadable records go to threads, whatever handlers there are."""
    paces = {
        kind_of(handler): _pace(handler, group_size)
        for handler in handlers.values()
        if handler.mode != "external" and handler.executor is None and handler.is_async == is_async
    }
    if not is_async:
        paces.setdefault("sync", Pace(group_size))
    return Menu(paces)


def menu_of_cells(handlers: Mapping[str, Handler], *, group_size: int) -> Menu:
    """That of a cell, which may be given what others run."""
    found = [handler for handler in handlers.values() if handler.mode != "external"]
    return Menu({cell_kind(handler): _pace(handler, group_size) for handler in found})


def _pace(handler: Handler, group_size: int) -> Pace:
    return Pace(handler.batch_size, BATCH_SECONDS) if handler.mode == "batch" else Pace(group_size)
