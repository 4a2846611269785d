"""Workers are killed with SIGKILL again and again while commands flow, 5 % of which fail for a while and 0.5 % for good.

Promised: every command that was published takes effect once or is a dead letter, the effects of a key are in order of
publishing, and nothing is left waiting. For external effects: none is missing, and none overtakes another of its key.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.chaos.plan import Plan
from tests.chaos.trial import Trial, wait_until
from tests.support.consumers import Forwarder, eventually
from tests.support.services import Services

KILLS = 5


@pytest.mark.parametrize("mode", ["transactional", "async", "external"])
def test_killed_workers_lose_and_repeat_nothing(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, mode: str
) -> None:
    plan = Plan(mode=mode, keys=59, work_seconds=0.001)
    trial = Trial(plan, services, database, topic_prefix, tmp_path)
    chance = random.Random(7)
    try:
        with Forwarder(database, services.bootstrap):
            trial.fleet.start_worker()
            trial.fleet.start_worker()
            with trial.writer.flowing(400):
                eventually(trial.ended, "command that has ended")
                started = time.monotonic()
                for kill in range(KILLS):
                    wait_until(started + 1.5 * (kill + 1))
                    chance.choice(trial.fleet.running()).kill()
                    trial.fleet.start_worker()
            eventually(trial.drained, "end", 60)
    finally:
        trial.fleet.end()
    assert not trial.problems()
