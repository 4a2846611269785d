"""A worker is frozen with SIGSTOP for longer than every time-out, in the middle of its transactions, and then goes on.

Promised: meanwhile others take over all of its keys, whatever it had locked; and when it wakes up it applies nothing that
was done without it, so that no command takes effect twice and no key is out of order.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.support.chaos import Attack, wait_until
from tests.support.consumers import Forwarder, eventually
from tests.support.services import Services

FROZEN_SECONDS = 9.0  # the session, the lease and the transaction of a test worker end after 6, 4 and 4


@pytest.mark.parametrize("mode", ["sync", "external"])
def test_a_frozen_worker_changes_nothing_late(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, mode: str
) -> None:
    attack = Attack(services, database, topic_prefix, mode, 0.02, tmp_path)
    group = attack.group
    try:
        with Forwarder(database, services.bootstrap):
            victim = attack.start()
            attack.start()
            eventually(lambda: group.count("select count(*) from onceward.workers") == 2, "two workers")
            with attack.flowing(100):
                eventually(
                    lambda: group.count("select count(distinct pid) from effect") == 2,
                    "effects of both workers",
                )
                victim.send_signal(signal.SIGSTOP)
                frozen = time.monotonic()
                before = len(attack.published)
                wait_until(frozen + FROZEN_SECONDS)
            eventually(lambda: ended(attack, before), "end of what was published before the freeze", 40)
            assert group.count("select count(*) from effect where pid = %s", victim.pid) > 0
            victim.send_signal(signal.SIGCONT)
            with attack.flowing(100):
                wait_until(time.monotonic() + 2)
            eventually(attack.finished, "end", 40)
            assert victim.poll() is None, "it goes on as a member"
    finally:
        attack.end()
    assert not attack.problems(once=mode == "sync")


def ended(attack: Attack, count: int) -> bool:
    ids = list(attack.published)[:count]
    statement = "select count(*) from onceward.ledger where state in ('done', 'dead') and command_id = any(%s)"
    return attack.group.count(statement, ids) == count
