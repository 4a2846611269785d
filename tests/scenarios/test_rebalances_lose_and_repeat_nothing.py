"""Workers join and leave the group every second while commands flow; those that leave are told to by SIGTERM.

Promised: each rebalance is cooperative and costs nothing: every command takes effect once, in order of its key; a worker
that is told to stop finishes what it has begun, commits, exits with 0, and leaves no lease behind.
"""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.chaos import Attack, wait_until
from tests.support.consumers import Forwarder, eventually
from tests.support.services import Services

CHANGES = 6


@pytest.mark.parametrize("mode", ["sync", "async", "external"])
def test_rebalances_lose_and_repeat_nothing(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, mode: str
) -> None:
    attack = Attack(services, database, topic_prefix, mode, 0.002, tmp_path)
    leavers: list[subprocess.Popen[bytes]] = []
    try:
        with Forwarder(database, services.bootstrap):
            attack.start()
            with attack.flowing(400):
                eventually(lambda: attack.group.count("select count(*) from effect") > 0, "effect")
                started = time.monotonic()
                for change in range(CHANGES):
                    wait_until(started + 1.2 * change)
                    attack.start()
                    if change % 2:
                        leaver = eventually(lambda: registered(attack, leavers), "registered worker", 20)[0]
                        leaver.send_signal(signal.SIGTERM)
                        leavers.append(leaver)
            eventually(attack.finished, "end", 40)
            assert [leaver.wait(20) for leaver in leavers] == [0] * len(leavers)
            crashed = attack.group.count("select count(*) from onceward.attempts where outcome = 'crashed'")
            assert not crashed, "a drain costs no attempts"
            workers = "select count(*) from onceward.workers"
            eventually(lambda: attack.group.count(workers) == len(attack.running()), "lease of each worker")
    finally:
        attack.end()
    assert not attack.problems()


def registered(attack: Attack, leavers: list[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    """Workers that have come up and were not told to leave yet."""
    known = {pid for (pid,) in attack.group.query("select pid from onceward.workers")}
    return [process for process in attack.running() if process not in leavers and process.pid in known]
