"""Writers: commands in outbox transactions, several to a transaction and to a key, some transactions rolled back.

In the same transaction each command is noted in chaos.published, which so says exactly what was committed, and under its
key's lock, so that the numbers of a key are in the order of publishing.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg

from onceward_producer.rows import INSERT_MANY, arrays, row
from onceward_schemas.codec import Codec
from tests.chaos.plan import Plan, Stage
from tests.support.commands import Increment

SCHEMA: Final = """
create schema chaos;
create table chaos.counters (key text primary key, number bigint not null default 0) with (fillfactor = 50);
create table chaos.published (id uuid primary key, key text not null, number bigint not null);
create table chaos.effects (
    position bigint generated always as identity, id uuid not null, key text not null, number bigint not null,
    attempt int not null, pid int not null, at timestamptz not null default clock_timestamp()
);
"""
_LOCK: Final = "select key, number from chaos.counters where key = any(%s) order by key for update"
_COUNT: Final = (
    "update chaos.counters c set number = v.number from unnest(%s::text[], %s::bigint[]) v (key, number)"
    " where c.key = v.key"
)
_NOTE: Final = "insert into chaos.published select * from unnest(%s::uuid[], %s::text[], %s::bigint[])"
_LARGEST: Final = 40
_ROLLED_BACK: Final = 0.1
_LINGERING: Final = 0.01
"""Share of the transactions that stay open for a while, so that they commit after later ones."""


class Writer:
    """Publishes to a lane; `threads` at once while `flowing`. An outage is waited for."""

    def __init__(self, stage: Stage, codec: Codec, dsn: str) -> None:
        self._stage = stage
        self._plan: Plan = stage.plan
        self._codec = codec
        self._dsn = dsn
        self.written = 0
        """Commands whose commit was seen."""
        self.errors: list[Exception] = []
        self._counting = threading.Lock()
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(
                "insert into chaos.counters select 'k' || n from generate_series(1, %s) n on conflict do nothing",
                (self._plan.keys,),
            )

    def write(self, count: int) -> None:
        """So many commands, now."""
        with psycopg.connect(self._dsn) as connection:
            chance = random.Random(f"{self._plan.seed}/{self.written}")
            while count:
                count -= self._transaction(connection, chance, min(count, _LARGEST), calm=True)

    @contextmanager
    def flowing(self, a_second: float, most: int | None = None, threads: int = 2) -> Iterator[None]:
        """Publish steadily for the time of the block, or until there are `most`."""
        over = threading.Event()
        flows = [
            threading.Thread(target=self._flow, args=(over, a_second / threads, most, number), daemon=True)
            for number in range(threads)
        ]
        for flow in flows:
            flow.start()
        try:
            yield
        finally:
            over.set()
            for flow in flows:
                flow.join(30)
        if self.errors:
            raise self.errors[0]

    def _flow(self, over: threading.Event, a_second: float, most: int | None, number: int) -> None:
        chance = random.Random(f"{self._plan.seed}/{number}")
        connection: psycopg.Connection[Any] | None = None
        ours, started = 0, time.monotonic()
        try:
            while not over.wait(max(0.0, started + ours / a_second - time.monotonic())):
                left = _LARGEST if most is None else min(_LARGEST, most - self.written)
                if left <= 0:
                    return
                try:
                    if connection is None or connection.closed:
                        connection = psycopg.connect(self._dsn)
                    ours += self._transaction(connection, chance, left)
                except psycopg.Error:
                    if connection is not None:
                        with suppress(psycopg.Error):
                            connection.close()
                    over.wait(0.3)
        except Exception as error:
            self.errors.append(error)
        finally:
            if connection is not None:
                connection.close()

    def _transaction(
        self, connection: psycopg.Connection[Any], chance: random.Random, most: int, *, calm: bool = False
    ) -> int:
        """Up to `most` commands. Returns how many were committed."""
        keys = sorted(
            f"k{n}" for n in chance.sample(range(1, self._plan.keys + 1), min(self._plan.keys, (most + 1) // 2))
        )
        found: list[tuple[str, int]] = connection.execute(_LOCK, (keys,)).fetchall()
        commands: list[Increment] = []
        for key, last in found:
            more = chance.choice((1, 1, 2, 3)) if len(commands) < most else 0
            commands += [Increment(counter=key, amount=last + n + 1) for n in range(min(more, most - len(commands)))]
        rows = [row(command, self._codec)._replace(topic=self._stage.lane) for command in commands]
        numbers = {command.counter: command.amount for command in commands}
        connection.execute(_COUNT, (list(numbers), list(numbers.values())))
        connection.execute(INSERT_MANY, arrays(rows))
        names = [command.counter for command in commands], [command.amount for command in commands]
        connection.execute(_NOTE, ([each.id for each in rows], *names))
        if not calm and chance.random() < _LINGERING:
            time.sleep(chance.random())
        if not calm and chance.random() < _ROLLED_BACK:
            connection.rollback()
            return 0
        connection.commit()
        with self._counting:
            self.written += len(rows)
        return len(rows)
