"""The demo's terminal: a live card of the run on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import psycopg
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onceward_consumer.run_progress import RunProgress

_SECONDS_BETWEEN_LINES = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What is on its way at one moment."""

    outbox: int
    retrying: int
    parked: int
    dead: int
    done: int

    @classmethod
    def read(cls, connection: psycopg.Connection[Any]) -> Traffic:
        """Count it in the database."""
        row = connection.execute(
            """select (select count(*) from onceward.outbox),
                      (select count(*) from onceward.holds where state = 'retrying'),
                      (select count(*) from onceward.parked),
                      (select count(*) from onceward.dead_letters where state = 'open'),
                      (select count(*) from onceward.ledger where state = 'done')"""
        ).fetchone()
        assert row is not None
        return cls(outbox=row[0], retrying=row[1], parked=row[2], dead=row[3], done=row[4])


@dataclass
class View:
    """Shows the run and what happens to it. A context manager; `say` adds an event, `show` a new state."""

    console: Console
    events: deque[str] = field(default_factory=lambda: deque(maxlen=14))
    began: float = field(default_factory=time.monotonic)
    _live: Live | None = None
    _last: Panel | None = None
    _spoke: float = 0.0

    def __enter__(self) -> Self:
        if self.console.is_terminal:
            self._live = Live(console=self.console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        if self._last is not None:
            self.console.print(self._last)

    def say(self, event: str) -> None:
        """Note an event with the seconds since the start."""
        line = f"{time.monotonic() - self.began:6.1f} s  {event}"
        self.events.append(line)
        if self._live is None:
            self.console.print(line, highlight=False)

    def show(self, run: RunProgress, traffic: Traffic) -> None:
        """Show where the run stands."""
        self._last = self.card(run, traffic)
        if self._live is not None:
            self._live.update(self._last)
        elif time.monotonic() - self._spoke > _SECONDS_BETWEEN_LINES:
            self._spoke = time.monotonic()
            stages = ", ".join(f"{s.name} {s.processed}/{s.expected}" for s in run.stages)
            self.console.print(f"{time.monotonic() - self.began:6.1f} s  {run.state}: {stages}", highlight=False)

    def card(self, run: RunProgress, traffic: Traffic) -> Panel:
        """The run's card."""
        stages = Table.grid(padding=(0, 2))
        for stage in run.stages:
            failed = Text(f"{stage.failed} failed", style="red") if stage.failed else Text("")
            stages.add_row(
                stage.name,
                ProgressBar(total=max(stage.expected, 1), completed=stage.processed, width=40),
                f"{stage.processed:,} / {stage.expected:,}",
                failed,
            )
        numbers = Table.grid(padding=(0, 3))
        numbers.add_row(
            f"in the outbox [b]{traffic.outbox:,}[/b]",
            f"waiting for a retry [b]{traffic.retrying:,}[/b]",
            f"parked [b]{traffic.parked:,}[/b]",
            f"dead letters [b]{traffic.dead:,}[/b]",
            f"commands done [b]{traffic.done:,}[/b]",
        )
        title = f"{run.kind} {run.business_key or ''} · {run.state} · {run.percent} %"
        return Panel(Group(stages, Text(), numbers, Text(), *map(Text, self.events)), title=title, width=110)
