"""Limits hold over all workers, killed ones included; a dead worker's permits come back; changes are seen at once.

Processes make calls as fast as their limits let them, and note in the database when each began and ended: that table is
what these tests read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from onceward_consumer import controls
from onceward_consumer.limits import rate
from tests.support.consumers import eventually
from tests.support.limited_worker import CALLS, Rig, app_of, most_at_once
from tests.support.services import Services

GROUP = "limited"


class Processes:
    def __init__(self, dsn: str, **options: Any) -> None:
        self.dsn, self.options = dsn, options
        self.running: list[tuple[subprocess.Popen[str], str]] = []
        self.killed: dict[str, datetime] = {}

    def start(self) -> None:
        arguments = [sys.executable, "-m", "tests.support.limited_worker", self.dsn, GROUP, json.dumps(self.options)]
        process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        self.running.append((process, ""))
        self.running[-1] = (process, process.stdout.readline().strip())

    def kill(self, number: int) -> None:
        process, worker = self.running.pop(number)
        process.kill()
        process.wait()
        self.killed[worker] = query(self.dsn, "select clock_timestamp()")[0][0]

    def stop(self) -> None:
        for process, _ in self.running:
            process.kill()
        for process, _ in self.running:
            process.wait()


@contextmanager
def processes(dsn: str, count: int, **options: Any) -> Iterator[Processes]:
    query(dsn, CALLS)
    found = Processes(dsn, **options)
    try:
        for _ in range(count):
            found.start()
        yield found
    finally:
        found.stop()


def query(dsn: str, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else []


def count(dsn: str, where: str = "true") -> int:
    return int(query(dsn, f"select count(*) from calls where {where}")[0][0])


def test_no_more_run_at_once_than_the_limit_though_workers_are_killed(services: Services, database: str) -> None:
    with processes(database, 3, limits={"destination:smtp": {"concurrency": 5, "breaker": None}}, lease=4.0) as fleet:
        for _ in range(2):
            more = count(database) + 100
            eventually(lambda: count(database) > more, "further calls")  # noqa: B023
            fleet.kill(0)
            fleet.start()
        workers = eventually(
            lambda: query(
                database, "select 1 from calls where began > now() - interval '1 s' having count(distinct worker) = 3"
            ),
            "calls of all three",
        )
        assert workers
    assert most_at_once(database, ends=fleet.killed) == 5


def test_the_permits_of_a_dead_worker_come_back_when_its_lease_is_over(services: Services, database: str) -> None:
    query(database, CALLS)
    app = app_of(GROUP, {"destination:smtp": {"concurrency": 2, "breaker": None}})
    dead, alive = Rig(database, app, lease=2.0), Rig(database, app, lease=60.0)
    dead.start(working=False)
    dead.add(10)
    kind = dead.add(1)[0].kind
    eventually(
        lambda: dead.buffer.take_now(kind, lambda _: 1) and dead.limiter.share("destination:smtp")[0] == 2, "lease"
    )
    held_at = time.monotonic()
    dead.stopping.set()  # it beats no more, and gives nothing back
    dead.keeper.stop()
    alive.start()
    try:
        eventually(lambda: count(database) > 0, "calls")
        assert time.monotonic() - held_at > 0.5
    finally:
        alive.stop()
        dead.stop()


def test_a_rate_holds_in_every_window(services: Services, database: str) -> None:
    told = "40/s"
    with processes(database, 2, limits={"type:test.Increment": {"rate": told}}, threads=4):
        eventually(lambda: count(database) > 160, "calls")
    began = [row[0] for row in query(database, "select began from calls order by began")]
    span = (began[-1] - began[0]).total_seconds()
    assert len(began) > 0.7 * 40 * span, "the rate is made use of"
    for window in (0.2, 1.0, 3.0):
        most = max(
            sum(1 for other in began[first:] if other - began[first] < timedelta(seconds=window))
            for first in range(len(began))
        )
        assert most <= rate(told).most_in(window + 0.05)  # a call is written down a little after its token was used


def test_what_an_operator_sets_holds_while_workers_run(services: Services, database: str) -> None:
    with processes(database, 2, limits={"destination:smtp": {"concurrency": 6, "breaker": None}}):
        eventually(lambda: count(database) > 100, "calls")
        with psycopg.connect(database, autocommit=True) as connection:
            controls.set_limit(connection, GROUP, "destination:smtp", concurrency=2, by="ann", because="slow")
            time.sleep(2.0)  # what is promised: seen within that time
            [[since]] = query(database, "select clock_timestamp()")
            eventually(lambda: count(database, f"began > '{since}'") > 50, "calls under the new limit")
            assert most_at_once(database, f"began > '{since}'") <= 2
            controls.pause(connection, GROUP, "lane:lane", by="ann", because="maintenance")
            time.sleep(2.0)
            paused = count(database)
            time.sleep(0.5)
            assert count(database) == paused
            controls.resume(connection, GROUP, "lane:lane", by="ann", because="done")
        eventually(lambda: count(database) > paused + 20, "calls after the pause")


@pytest.mark.parametrize("scope", ["lane:lane", "type:test.Increment", "destination:smtp", "tenant:t0"])
def test_each_kind_can_be_paused(services: Services, database: str, scope: str) -> None:
    query(database, CALLS)
    rig = Rig(database, app_of(GROUP, {}), tenants=2, threads=2)
    with psycopg.connect(database, autocommit=True) as connection:
        controls.pause(connection, GROUP, scope, by="ann", because="test")
    rig.start()
    try:
        eventually(lambda: rig.buffer.behind().get(scope), "waiting keys")
        of_it = "tenant = 't0'" if scope.startswith("tenant") else "true"
        if scope.startswith("tenant"):
            eventually(lambda: count(database, "tenant = 't1'"), "calls of others")
        assert count(database, of_it) == 0
        with psycopg.connect(database, autocommit=True) as connection:
            controls.resume(connection, GROUP, scope, by="ann", because="test")
        eventually(lambda: count(database, of_it), "calls")
    finally:
        rig.stop()


def test_operators_see_what_holds(services: Services, database: str) -> None:
    limits = {"destination:smtp": {"concurrency": 3, "rate": "1000/s"}, "lane:lane": {"concurrency": 9}}
    with processes(database, 1, limits=limits), psycopg.connect(database, autocommit=True) as connection:
        eventually(lambda: count(database) > 20, "calls")
        shown = {each.scope: each for each in controls.show(connection, GROUP)}
    assert shown["destination:smtp"].declared == "concurrency 3, rate 1000/s, breaker"
    assert shown["destination:smtp"].breaker == "closed"
    assert shown["lane:lane"].declared == "concurrency 9"
    assert 1 <= shown["lane:lane"].permits <= 9
    assert shown["destination:smtp"].permits <= 3


def test_each_tenant_has_the_limit_of_all_tenants(services: Services, database: str) -> None:
    limits = {"tenant:*": {"concurrency": 2}, "tenant:t1": {"concurrency": 1}}
    with processes(database, 2, limits=limits, tenants=3):
        eventually(lambda: count(database, "tenant = 't1'") > 30 and count(database, "tenant = 't2'") > 30, "calls")
    assert [most_at_once(database, f"tenant = 't{number}'") for number in range(3)] == [2, 1, 2]


def test_a_frozen_worker_adds_to_the_limit_only_what_it_had_in_hand(services: Services, database: str) -> None:
    with processes(database, 2, limits={"destination:smtp": {"concurrency": 3, "breaker": None}}, lease=2.0) as fleet:
        eventually(lambda: count(database) > 50, "calls")
        process, worker = fleet.running[0]
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(3.0)  # longer than its lease: the other has its permits
        [[woken_at]] = query(database, "select clock_timestamp()")
        os.kill(process.pid, signal.SIGCONT)
        later = woken_at + timedelta(seconds=1)
        eventually(lambda: count(database, f"worker = '{worker}' and began > '{later}'") > 5, "calls of the woken")
    assert most_at_once(database, f"ended < '{woken_at}'") <= 3
    assert most_at_once(database, f"began > '{later}'") <= 3
    assert most_at_once(database) <= 3 + 3, "calls between their check and their end when it was stopped"
