"""A process that makes calls as fast as its limits let it, and writes down when each began and ended; for tests of limits.

python -m tests.support.limited_worker DSN GROUP JSON
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
import uuid
from datetime import timedelta
from typing import Any

import psycopg

from onceward_consumer.app import App
from onceward_consumer.buffer import Buffer
from onceward_consumer.clocks import DatabaseClock
from onceward_consumer.deliveries import Delivery
from onceward_consumer.items import Engine
from onceward_consumer.limiter import Limiter
from onceward_consumer.limits import declared_limits
from onceward_consumer.limits_keeper import LimitsKeeper
from onceward_consumer.release import Wakeups
from onceward_runtime.sql import query
from onceward_schemas import headers
from tests.support.commands import Increment

CALLS = """
create table calls (
    id bigint generated always as identity, worker uuid, pid int, tenant text, began timestamptz, ended timestamptz
)
"""
_BEAT = query("onceward_consumer", "worker_beat")


def app_of(group: str, limits: dict[str, dict[str, Any]]) -> App:
    """An app with one external handler, of the destination `smtp`, and these limits."""
    app = App(group)

    @app.handler(Increment, lane="lane", mode="external", destination="smtp")
    async def call(command: Increment, ctx: Any) -> None:
        raise AssertionError

    for scope, rules in limits.items():
        app.limit(scope, **rules)
    return app


class Rig:
    """What a worker has of limits: a lease, a buffer, a limiter and its keeper; and threads that make calls."""

    def __init__(self, dsn: str, app: App, *, lease: float = 4.0, threads: int = 8, tenants: int = 0) -> None:
        self.dsn, self.app, self.tenants = dsn, app, tenants
        self.lease = lease
        self.threads = threads
        self.incarnation = uuid.uuid4()
        self.limiter = Limiter(str(self.incarnation))
        self.buffer = Buffer(most_records=10_000, runners=threads)
        engine: Any = Engine(
            group=app.name,
            incarnation=self.incarnation,
            worker="w",
            code_version=None,
            codec=None,  # type: ignore[arg-type]
            clock=DatabaseClock(),
            handlers=dict(app.handlers),
            reach=timedelta(days=1),
            lock_timeout=timedelta(seconds=1),
            limiter=self.limiter,
        )
        self.keeper = LimitsKeeper(
            dsn, engine, self.limiter, declared_limits(app.limits, app.handlers.values()), self.buffer, Wakeups(())
        )
        self.stopping = threading.Event()
        self._added = 0
        self._all = [threading.Thread(target=self._beat, daemon=True)]
        self._all += [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]

    def start(self, *, working: bool = True) -> None:
        """Register, read the limits, and begin."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            self._beat_once(connection)
        self.keeper.start()
        for thread in self._all if working else self._all[:1]:
            thread.start()

    def stop(self) -> None:
        self.stopping.set()
        self.buffer.close()
        for thread in self._all:
            if thread.ident is not None:
                thread.join()
        self.keeper.stop()

    def add(self, count: int) -> list[Delivery]:
        """Deliveries, each of a key of its own."""
        found = []
        for _ in range(count):
            self._added += 1
            tenant = f"t{self._added % self.tenants}" if self.tenants else None
            found.append(delivery(self.app, f"{self.incarnation}-{self._added}", tenant=tenant))
        self.buffer.add(found)
        return found

    def _beat_once(self, connection: psycopg.Connection[Any]) -> None:
        lease = timedelta(seconds=self.lease)
        connection.execute(_BEAT, (self.incarnation, self.app.name, "host", 1, None, lease, False))

    def _beat(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            while not self.stopping.wait(self.lease / 4):
                self._beat_once(connection)

    def _work(self) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            kind = next(iter(delivery(self.app, "x").kind for _ in range(1)))
            while not self.stopping.is_set():
                if self.buffer.records < 200:
                    self.add(100)
                for run in self.buffer.take({kind: lambda _: 1}, 0.1, self.buffer.pokes):
                    for each in run.deliveries:
                        if self.limiter.may_call(each):
                            self._call(connection, each)
                    self.buffer.release([(run, [])])

    def _call(self, connection: psycopg.Connection[Any], each: Delivery) -> None:
        tenant = each.envelope.tenant if each.envelope is not None else None
        [[number]] = connection.execute(
            "insert into calls (worker, pid, tenant, began) values (%s, pg_backend_pid(), %s, clock_timestamp())"
            " returning id",
            (self.incarnation, tenant),
        ).fetchall()
        time.sleep(random.uniform(0.002, 0.02))
        connection.execute("update calls set ended = clock_timestamp() where id = %s", (number,))


def delivery(app: App, key: str, *, tenant: str | None = None, number: int = 0) -> Delivery:
    """A record as the poller hands it on."""
    pairs: list[tuple[str, bytes | None]] = [
        (headers.ID, str(uuid.uuid4()).encode()),
        (headers.TYPE, b"test.Increment"),
        (headers.VERSION, b"1"),
        (headers.ATTEMPT, b"1"),
    ]
    if tenant is not None:
        pairs.append((headers.TENANT, tenant.encode()))
    found = Delivery(
        topic="lane",
        partition=0,
        offset=number,
        timestamp_ms=0,
        key=key.encode(),
        payload=b"",
        headers=pairs,
        lane="lane",
        assignment=None,
        handlers=app.handlers,
    )
    assert found.refusal is None, found.refusal
    return found


def most_at_once(dsn: str, where: str = "true", *, ends: dict[str, Any] | None = None) -> int:
    """The largest number of calls that ran at the same time; those of a worker in `ends` ended then at the latest."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(f"select worker::text, began, ended from calls where {where}").fetchall()
    marks = []
    for worker, began, ended in rows:
        end = ended or (ends or {}).get(worker)
        marks.append((began, 1))
        if end is not None:
            marks.append((end, -1))
    running = most = 0
    for _, step in sorted(marks, key=lambda mark: (mark[0], mark[1])):
        running += step
        most = max(most, running)
    return most


if __name__ == "__main__":
    options = json.loads(sys.argv[3])
    rig = Rig(sys.argv[1], app_of(sys.argv[2], options.pop("limits")), **options)
    rig.start()
    print(rig.incarnation, flush=True)
    sys.stdin.read()
    rig.stop()
