"""Calls of leased external commands in cells: those of handlers with executor="process", and those that a worker died of once.

Claim, lease and completion are the worker's. A call whose cell dies is made once more, in a new one, under the same lease and
as the same attempt; the second death is final.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from onceward_consumer.cell_wire import Broken, CallReply, CallRequest, Lost, apply, sent
from onceward_consumer.cells import Cell, CellDiedError, CellOverranError, Cells, CellUnavailableError
from onceward_consumer.deaths import is_last, verdict
from onceward_consumer.desk import HANDED_BACK
from onceward_consumer.failure_outcomes import outcome_of
from onceward_consumer.items import Engine, Item
from onceward_consumer.outcomes import Outcome
from onceward_consumer.overruns import too_long

_REST_SECONDS: Final = 1.0
_TRIES: Final = 3


class CellCalls:
    """A few threads, each with a cell of its own."""

    def __init__(self, cells: Cells, engine: Engine, size: int) -> None:
        self._cells = cells
        self._engine = engine
        self._own = threading.local()
        self._calling: dict[int, Cell] = {}
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(size, thread_name_prefix="onceward-cell-call")

    def wanted(self, item: Item) -> bool:
        """Whether a command is to be called in a cell, and can."""
        assert item.handler is not None
        return item.handler.executor == "process" or (item.crashed and self._cells.possible)

    def submit(self, item: Item) -> Future[bool]:
        """Call it; True once its outcome is set, False where it has to be called without a cell."""
        try:
            return self._pool.submit(self._call, item)
        except RuntimeError:  # the pool takes nothing any more: the worker drains, and this call has not begun
            item.outcome = HANDED_BACK
            ended: Future[bool] = Future()
            ended.set_result(True)
            return ended

    def end(self, item: Item) -> None:
        """End the call, with its cell."""
        if (cell := self._calling.get(id(item))) is not None:
            cell.kill()

    def stop(self) -> None:
        """Begin no call any more."""
        self._stopping.set()
        self._pool.shutdown(wait=False, cancel_futures=False)

    def _call(self, item: Item) -> bool:
        died: tuple[str, ...] = ()
        tries = 0
        while not self._stopping.is_set():
            try:
                outcome = self._ask(item)
            except CellOverranError:
                assert item.handler is not None
                outcome = outcome_of(too_long(item.handler), item, self._engine)
            except CellDiedError as death:
                if self._cells.closed:
                    break
                if death.taken:
                    died = (*died, death.how)
                outcome = self._judge(item, died)
            except CellUnavailableError as error:
                tries += 1
                assert item.handler is not None
                if item.handler.executor is None and tries >= _TRIES:
                    self._cells.give_up(str(error))
                    return False
                self._stopping.wait(_REST_SECONDS)
                continue
            if outcome is not None:
                item.outcome = outcome
                return True
        item.outcome = HANDED_BACK
        return True

    def _judge(self, item: Item, died: tuple[str, ...]) -> Outcome | None:
        assert item.handler is not None
        return verdict(died) if died and is_last(item, item.handler, len(died)) else None

    def _ask(self, item: Item) -> Outcome | None:
        cell: Cell | None = getattr(self._own, "cell", None)
        if cell is not None and not cell.alive:
            self._drop(cell)
            cell = None
        if cell is None:
            cell = self._own.cell = self._cells.start()
        self._calling[id(item)] = cell
        try:
            reply = cell.ask(
                CallRequest(
                    sent(item.delivery),
                    item.attempt,
                    item.attempts_before,
                    item.first_failed_at,
                    self._cells.knowledge(),
                )
            )
        except (CellDiedError, CellOverranError):
            self._drop(cell)
            if self._stopping.is_set() and cell.ended_by_us:
                return HANDED_BACK
            raise
        finally:
            del self._calling[id(item)]
        if isinstance(reply, Broken | Lost):
            raise CellUnavailableError(reply.error)
        assert isinstance(reply, CallReply)
        heads, known, crashed = item.heads, item.known, item.crashed
        command = item.command
        apply(reply.item, item)
        item.heads, item.known, item.crashed, item.command = heads, known, crashed, command
        for name, value in reply.left.items():
            setattr(item, name, value)
        return item.outcome

    def _drop(self, cell: Cell) -> None:
        self._own.cell = None
        with contextlib.suppress(OSError):
            cell.close()
