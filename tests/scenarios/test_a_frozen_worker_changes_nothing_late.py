"""A worker is frozen with SIGSTOP for longer than every time-out, in the middle of its transactions, and then goes on.

Promised: meanwhile others take over all of its keys, whatever it had locked; and when it wakes up it applies nothing that
was done without it, so that no command takes effect twice and no key is out of order.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.chaos.plan import Plan
from tests.chaos.trial import Trial, wait_until
from tests.chaos.worker import LEASE_SECONDS, SESSION_SECONDS, TRANSACTION_SECONDS
from tests.support.consumers import Forwarder, eventually
from tests.support.services import Services

FROZEN_SECONDS = max(LEASE_SECONDS, SESSION_SECONDS, TRANSACTION_SECONDS) + 3.0


@pytest.mark.parametrize("mode", ["transactional", "external"])
def test_a_frozen_worker_changes_nothing_late(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, mode: str
) -> None:
    plan = Plan(mode=mode, keys=59, work_seconds=0.02)
    trial = Trial(plan, services, database, topic_prefix, tmp_path)
    try:
        with Forwarder(database, services.bootstrap):
            victim = trial.fleet.start_worker()
            trial.fleet.start_worker()
            eventually(lambda: trial.group.count("select count(*) from onceward.workers") == 2, "two workers")
            with trial.writer.flowing(100):
                eventually(lambda: len(actors(trial)) == 2, "effects of both workers")
                victim.freeze()
                frozen = time.monotonic()
                before = [row[0] for row in trial.group.query("select id from chaos.published")]
                wait_until(frozen + FROZEN_SECONDS)
            ended = "select count(*) from onceward.ledger where state in ('done', 'dead') and command_id = any(%s)"
            eventually(lambda: trial.group.count(ended, before) == len(before), "end of what was published before", 40)
            assert victim.pid in actors(trial)
            victim.thaw()
            with trial.writer.flowing(100):
                wait_until(time.monotonic() + 2)
            eventually(trial.drained, "end", 40)
            assert victim.running, "it goes on as a member"
    finally:
        trial.fleet.end()
    assert not trial.problems()


def actors(trial: Trial) -> set[int]:
    """Processes that have made effects."""
    return {effect.pid for effect in trial.evidence().effects}
