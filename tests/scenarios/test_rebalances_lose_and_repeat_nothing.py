"""Workers join and leave the group every second while commands flow; those that leave are told to by SIGTERM.

Promised: each rebalance is cooperative and costs nothing: every command takes effect once, in order of its key; a worker
that is told to stop finishes what it has begun, commits, exits with 0, and leaves no lease behind.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.chaos.fleet import Member
from tests.chaos.plan import Plan
from tests.chaos.trial import Trial, wait_until
from tests.support.consumers import Forwarder, eventually
from tests.support.services import Services

CHANGES = 6


@pytest.mark.parametrize("mode", ["transactional", "async", "external"])
def test_rebalances_lose_and_repeat_nothing(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, mode: str
) -> None:
    plan = Plan(mode=mode, keys=59, work_seconds=0.002)
    trial = Trial(plan, services, database, topic_prefix, tmp_path)
    leavers: list[Member] = []
    try:
        with Forwarder(database, services.bootstrap):
            trial.fleet.start_worker()
            with trial.writer.flowing(400):
                eventually(trial.ended, "command that has ended")
                started = time.monotonic()
                for change in range(CHANGES):
                    wait_until(started + 1.2 * change)
                    trial.fleet.start_worker()
                    if change % 2:
                        leaver = eventually(lambda: registered(trial), "registered worker", 20)[0]
                        leaver.leave()
                        leavers.append(leaver)
            eventually(trial.drained, "end", 40)
            assert [leaver.process.wait(20) for leaver in leavers] == [0] * len(leavers)
            crashed = trial.group.count("select count(*) from onceward.attempts where outcome = 'crashed'")
            assert not crashed, "a drain costs no attempts"
            workers = "select count(*) from onceward.workers"
            eventually(lambda: trial.group.count(workers) == len(trial.fleet.running()), "lease of each worker")
    finally:
        trial.fleet.end()
    assert not trial.problems()


def registered(trial: Trial) -> list[Member]:
    """Workers that have come up and were not told to leave yet."""
    known = {pid for (pid,) in trial.group.query("select pid from onceward.workers")}
    return [member for member in trial.fleet.staying() if member.pid in known]
