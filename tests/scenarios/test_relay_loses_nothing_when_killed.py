"""A relay that is killed again and again while services write loses nothing and reorders nothing: every committed row is in
Kafka, first occurrences are in order within each key, rolled-back rows never appear, and the outbox ends empty."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.relay import (
    RelayProcess,
    Writers,
    check_promises,
    make_topic,
    outbox_rows,
    read,
    until,
)
from tests.support.services import Services

KILLS = 4


@pytest.mark.parametrize("mode", ["stream", "poll"])
def test_every_committed_row_arrives_in_order_though_the_relay_is_killed(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, mode: str
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "killed")
    writers = Writers(database, topic)
    try:
        for kill in range(KILLS):
            log = tmp_path / f"relay{kill}.log"
            relay = RelayProcess(database, services.bootstrap, log, "--mode", mode)
            relay.wait_for("relay.active")
            time.sleep(0.2 + 0.15 * kill)  # not an event that is awaited: the kill shall fall anywhere
            relay.kill()
        relay = RelayProcess(database, services.bootstrap, tmp_path / "last.log", "--mode", mode)
        relay.wait_for("relay.active")
    finally:
        committed = writers.stop()
    try:
        assert len(committed.rows) > 500
        assert committed.rolled_back
        repeats = check_promises(read(services.bootstrap, topic, len(committed.rows)), committed)
        assert repeats < len(committed.rows)
        until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
    finally:
        assert relay.stop() == 0
