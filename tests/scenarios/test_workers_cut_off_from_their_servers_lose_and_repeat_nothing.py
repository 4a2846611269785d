"""Workers are cut off from Kafka, from PostgreSQL and from both, for longer than every time-out: connections are reset, or
nothing passes any more and nobody is told, so that what was under way arrives late.

Promised: others take over, and what arrives late changes nothing: every command takes effect once, in order of its key.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.plan import Plan
from tests.chaos.servers import Servers, own_servers
from tests.chaos.trial import Trial, wait_until
from tests.support.consumers import Forwarder, eventually
from tests.support.databases import fresh_database

CUT_OFF_SECONDS = 9.0  # the session, the lease and the transaction of a test worker end after 6, 5 and 5


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with own_servers(doors=3) as found:
        yield found


@pytest.mark.parametrize("mode", ["transactional", "external"])
def test_workers_cut_off_from_their_servers_lose_and_repeat_nothing(
    servers: Servers, tmp_path: Path, mode: str
) -> None:
    plan = Plan(mode=mode, keys=59, work_seconds=0.005)
    with fresh_database(servers.stack.postgres.dsn) as dsn:
        trial = Trial(plan, servers.services, dsn, f"cut-{mode}.", tmp_path, doors=servers.doors)
        try:
            with Forwarder(dsn, servers.services.bootstrap), trial.writer.flowing(100):
                doors = [trial.fleet.start_worker().door for _ in servers.doors]
                eventually(
                    lambda: len({effect.pid for effect in trial.evidence().effects}) == len(doors),
                    "effects of all workers",
                    60,
                )
                first, second, third = (door for door in doors if door is not None)
                first.kafka.stall()
                second.postgres.stall()
                third.postgres.cut()
                wait_until(time.monotonic() + CUT_OFF_SECONDS)
                for door in servers.doors:
                    door.resume()
                third.kafka.cut()
                third.postgres.stall()
                wait_until(time.monotonic() + CUT_OFF_SECONDS)
                third.resume()
            with Forwarder(dsn, servers.services.bootstrap):
                eventually(trial.drained, "end", 60)
            assert len(trial.fleet.running()) == 3, "they go on as members"
        finally:
            trial.fleet.end()
        assert not trial.problems()
