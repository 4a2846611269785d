"""Workers are killed with SIGKILL again and again while commands flow, 5 % of which fail for a while and 0.5 % for good.

Promised: every command that was published takes effect once or is a dead letter, the effects of a key are in order of
publishing, and nothing is left waiting. For external effects: none is missing, and none overtakes another of its key.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.support.chaos import Attack, wait_until
from tests.support.chaos_worker import is_rejected
from tests.support.consumers import Forwarder, eventually
from tests.support.services import Services

KILLS = 5


@pytest.mark.parametrize("mode", ["sync", "async", "external"])
def test_killed_workers_lose_and_repeat_nothing(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, mode: str
) -> None:
    attack = Attack(services, database, topic_prefix, mode, 0.001, tmp_path)
    chance = random.Random(7)
    try:
        with Forwarder(database, services.bootstrap):
            attack.start()
            attack.start()
            with attack.flowing(400):
                eventually(lambda: attack.group.count("select count(*) from effect") > 0, "effect")
                started = time.monotonic()
                for kill in range(KILLS):
                    wait_until(started + 1.5 * (kill + 1))
                    chance.choice(attack.running()).kill()
                    attack.start()
            eventually(attack.finished, "end", 60)
    finally:
        attack.end()
    assert not attack.problems(once=mode != "external")
    assert attack.group.count("select count(*) from onceward.dead_letters") == sum(
        is_rejected(amount) for _, amount in attack.published.values()
    )
