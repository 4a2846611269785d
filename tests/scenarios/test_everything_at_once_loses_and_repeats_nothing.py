"""The short form of `make chaos-consumer`: workers and relays are killed, frozen beyond every time-out, cut off from Kafka and
from PostgreSQL, told to leave; members join and leave; both servers restart; all at random, while commands flow.

Promised: each command takes effect once, in order of its key, or is a dead letter if it was meant to; nothing of a transaction
that was rolled back runs; and soon after the last attack nothing is left waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.plan import Plan
from tests.chaos.run import run
from tests.chaos.servers import Servers, own_servers


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with own_servers(doors=10) as found:
        yield found


@pytest.mark.parametrize(("mode", "order"), [("transactional", "retry"), ("external", "strict")])
def test_everything_at_once_loses_and_repeats_nothing(servers: Servers, tmp_path: Path, mode: str, order: str) -> None:
    plan = Plan(mode=mode, order=order, commands=2_000, keys=100, seconds=20, workers=2)
    report = run(plan, servers, tmp_path)
    assert not report.problems
    assert report.published >= plan.commands
    assert report.dead > 0
    assert sum(report.attacks.values()) > 5
