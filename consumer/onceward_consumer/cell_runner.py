"""Runs transactional commands in cells: those of handlers with executor="process", and the first of a partition whose worker
before did not hand it over, for one of them may be what killed it.

When a cell dies, its group has not happened; it is run again one by one, so that a death is one command's.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from onceward_consumer import losses
from onceward_consumer.buffer import Buffer
from onceward_consumer.cell_wire import (
    Broken,
    GroupRequest,
    Lost,
    ReleaseReply,
    ReleaseRequest,
    apply,
    received,
    sent,
)
from onceward_consumer.cells import Cell, CellDiedError, CellOverranError, Cells, CellUnavailableError
from onceward_consumer.connections import ConnectionLostError
from onceward_consumer.deliveries import Address, Delivery, Kind, kind_of
from onceward_consumer.executors import RunnerThread, finish, finish_release
from onceward_consumer.items import Engine, Item
from onceward_consumer.lanes import Run
from onceward_consumer.limiter import stand_in
from onceward_consumer.losses import SessionTimedOutError
from onceward_consumer.menus import Menu, menu_of_cells
from onceward_consumer.outcomes import Busy
from onceward_consumer.release import Released, Wakeups

_NEXT: Final = Busy(timedelta(0))
_IDLE_SECONDS: Final = 60.0
_TRIES: Final = 3
"""To start a cell, before commands that do not need one are run without."""
_BLAMELESS: Final = 3
"""Cells that die one after the other without calling anything; then there is a rest."""


class BrokenCellError(Exception):
    """The engine failed in a cell."""


class CellRunner(RunnerThread):
    """One thread and its cell, which is started when it is first needed."""

    def __init__(
        self,
        name: str,
        *,
        engine: Engine,
        buffer: Buffer,
        cells: Cells,
        wakeups: Wakeups,
        menu: Menu,
        lent: Sequence[Kind],
        keep: bool,
    ) -> None:
        """`keep` says that the cell is kept while it has nothing to do; `lent` are kinds whose followers may be run here."""
        super().__init__(name)
        self._engine = engine
        self._buffer = buffer
        self._cells = cells
        self._wakeups = wakeups
        self._menu = menu
        self._lent = lent
        self._keep = keep
        self._cell: Cell | None = None
        self._used_at = 0.0
        self._failed = 0
        self._why = ""

    def _serve(self) -> None:
        while not self._stopping.is_set():
            pokes = self._buffer.pokes
            if (due := self._due()) is not None:
                self._release(due)
                continue
            runs = self._buffer.take(self._menu.most, 0.5, pokes)
            if runs:
                self.busy = True
                self._process(runs)
                self.busy = False
            else:
                self._look_after()

    def _due(self) -> Kind | None:
        if (own := next(filter(self._wakeups.due, self._menu.kinds), None)) is not None:
            return own
        return next((kind for kind in self._lent if self._wakeups.due(kind, "cells")), None)

    def _look_after(self) -> None:
        """A cell that died while it had nothing to do is nobody's fault; one that nobody needs any more is let go."""
        if self._cell is not None:
            idle = time.monotonic() - self._used_at > _IDLE_SECONDS
            if not self._cell.alive or (idle and not self._keep):
                self._close()

    def _process(self, runs: Sequence[Run]) -> None:
        started = time.perf_counter()
        items = [_item(delivery, run) for run in runs for delivery in run.deliveries]
        kind = items[0].delivery.kind
        if not self._to_threads(items):
            self._carry_out(items)
        for item in items:
            if item.outcome is None:
                item.outcome = _NEXT
        self._forget(items)
        finish(self._buffer, runs, items, self._engine, self._wakeups)
        self._menu.note(kind, len(items), time.perf_counter() - started)

    def _carry_out(self, items: Sequence[Item]) -> bool:
        """Run a group until its outcomes are durable. False when there is no time left for it."""
        blameless = 0
        while True:
            try:
                reply = self._ask(GroupRequest([sent(item.delivery) for item in items], self._cells.knowledge()))
                for item, found in zip(items, reply.items, strict=True):
                    apply(found, item)
                return True
            except (CellDiedError, CellOverranError) as gone:
                self._close()
                if self._cells.closed:
                    return False
                if isinstance(gone, CellOverranError):
                    if len(items) == 1 or not _is_batch(items[0]):
                        self._cells.note_overrun(gone.calling)
                elif not gone.taken:
                    blameless += 1
                    if blameless > _BLAMELESS and not self._rest(gone):
                        return False
                    continue
                elif len(items) == 1:
                    self._engine.deaths.note(items[0].id, gone.how)
                if len(items) > 1:
                    return self._one_by_one(items)
            except (CellUnavailableError, ConnectionLostError) as error:
                if not self._rest(error) or self._to_threads(items):
                    return False

    def _one_by_one(self, items: Sequence[Item]) -> bool:
        waiting: dict[Address, Busy] = {}
        for item in items:
            address = item.delivery.address
            if item.ordered and address in waiting:
                item.outcome = waiting[address]
                continue
            if not self._carry_out([item]):
                return False
            if isinstance(item.outcome, Busy) and address is not None:
                waiting[address] = item.outcome
        return True

    def _to_threads(self, items: Sequence[Item]) -> bool:
        """Where there can be no cells, whatever does not need one is run in threads, once it is handed out again."""
        if self._cells.possible and self._failed < _TRIES:
            return False
        moved = [item for item in items if item.handler is not None and item.handler.executor is None]
        if not moved:
            return False
        if self._cells.possible:
            self._cells.give_up(self._why)
        for item in moved:
            assert item.handler is not None
            item.delivery.kind = kind_of(item.handler)
        return True

    def _release(self, kind: Kind) -> None:
        """Which followers they are is only known in the cell: where limits hold they come singly, one of each type let by."""
        limiter = self._engine.limiter
        found = [handler for handler in self._engine.handlers.values() if kind_of(handler) == kind]
        met = [handler for handler in found if limiter is not None and limiter.concerns(handler)]
        if limiter is None or not met:
            self._release_of(kind, single=False)
            return
        stand_ins = [stand_in(handler) for handler in met]
        try:
            if all(limiter.admit_all(stand_ins)):
                self._release_of(kind, single=True)
        finally:
            limiter.leave(stand_ins)

    def _release_of(self, kind: Kind, *, single: bool) -> None:
        for _ in range(100):
            try:
                reply: ReleaseReply = self._ask(ReleaseRequest(kind, single, self._cells.knowledge()))
                break
            except (CellDiedError, CellOverranError) as gone:
                self._close()
                if self._cells.closed:
                    return
                single = True
                if isinstance(gone, CellOverranError):
                    self._cells.note_overrun(gone.calling)
                elif gone.taken and gone.calling is not None:
                    self._engine.deaths.note(gone.calling.command_id, gone.how)
                elif not self._rest(gone):
                    return
            except (CellUnavailableError, ConnectionLostError) as error:
                self._wakeups.set_for(kind)
                self._rest(error)
                if kind in self._lent and self._failed >= _TRIES and self._cells.possible:
                    self._cells.give_up(self._why)
                return
        else:
            self._wakeups.set_for(kind)
            return
        items = []
        for found, became in reply.items:
            item = _item(received(found, self._engine.handlers), None)
            apply(became, item)
            items.append(item)
        self._forget(items)
        finish_release(Released(reply.keys, items, reply.others), self._engine, self._wakeups)

    def _forget(self, items: Sequence[Item]) -> None:
        losses.forget(items, self._engine)
        self._engine.deaths.forget(items)

    def _ask(self, request: Any) -> Any:
        """Raises: CellDiedError, CellOverranError, CellUnavailableError, ConnectionLostError, BrokenCellError."""
        self._used_at = time.monotonic()
        if self._cell is not None and not self._cell.alive:
            self._close()
        if self._cell is None:
            self._cell = self._cells.start()
        reply = self._cell.ask(request)
        self._used_at = time.monotonic()
        self._failed = 0
        if isinstance(reply, Lost):
            raise (SessionTimedOutError if reply.timed_out else ConnectionLostError)(reply.error)
        if isinstance(reply, Broken):
            raise BrokenCellError(reply.error)
        self.backoff.succeeded()
        return reply

    def _rest(self, error: BaseException) -> bool:
        """Wait for the database, or for room for a process. False when there is no time left for it."""
        if isinstance(error, ConnectionLostError):
            return not self._stopping.wait(self.backoff.failed(error))
        self._failed += 1
        self._why = str(error)
        return not self._stopping.wait(min(5.0, 0.2 * self._failed))

    def _close(self) -> None:
        if self._cell is not None:
            cell, self._cell = self._cell, None
            with contextlib.suppress(OSError):
                cell.close()


def _is_batch(item: Item) -> bool:
    """Whether a call is about more commands than the one that is noted."""
    return item.handler is not None and item.handler.mode == "batch"


def _item(delivery: Delivery, run: Run | None) -> Item:
    """As the worker sees it: the cell decodes."""
    item = Item(delivery, delivery.id, f"{delivery.id.int:032x}", delivery.envelope, delivery.handler)
    if delivery.envelope is not None:
        item.attempt = item.asked = delivery.envelope.attempt
    item.run = run
    return item


class CellRunners:
    """All of a worker. None has a process before there is something to run in it."""

    def __init__(
        self, size: int, *, engine: Engine, buffer: Buffer, cells: Cells, wakeups: Wakeups, group_size: int
    ) -> None:
        handlers = [handler for handler in engine.handlers.values() if handler.mode != "external"]
        keep = any(handler.executor is not None for handler in handlers)
        self._runners = [
            CellRunner(
                f"onceward-cell-{number}",
                engine=engine,
                buffer=buffer,
                cells=cells,
                wakeups=wakeups,
                lent=tuple({"sync", *(kind_of(handler) for handler in handlers if handler.executor is None)}),
                menu=menu_of_cells(engine.handlers, group_size=group_size),
                keep=keep,
            )
            for number in range(size if handlers and (keep or cells.possible) else 0)
        ]

    def start(self) -> None:
        """Begin."""
        for runner in self._runners:
            runner.start()

    def stop(self) -> None:
        """Take nothing any more."""
        for runner in self._runners:
            runner.stop()

    def join(self, timeout: float) -> None:
        """Wait for what runs."""
        until = time.monotonic() + timeout
        for runner in self._runners:
            runner.join(until - time.monotonic())

    @property
    def busy(self) -> int:
        """How many have something in hand."""
        return sum(runner.busy for runner in self._runners)

    @property
    def lost(self) -> bool:
        """Whether the database was away when one last asked."""
        return any(runner.backoff.lost for runner in self._runners)

    def failures(self) -> list[BaseException]:
        """What went wrong in the engine itself."""
        return [runner.failure for runner in self._runners if runner.failure is not None]
