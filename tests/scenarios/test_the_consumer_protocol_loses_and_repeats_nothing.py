"""With Kafka's newer group protocol (KIP-848) workers join, are told to leave, and are killed, while commands flow.

Promised: the same as with the classic one: every command takes effect once, or is a dead letter, in order of its key, and
nothing is left waiting. The broker decides on the shares, and knows after which silence a worker is dead.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from onceward_runtime import kafka
from tests.chaos.plan import Plan
from tests.chaos.trial import Trial, wait_until
from tests.support.consumers import Forwarder, eventually
from tests.support.services import Services

SESSION_SECONDS = 6
CHANGES = 4


def shorten_the_session(trial: Trial) -> None:
    """The broker gives a silent worker 45 s by default."""
    entry = ConfigEntry(
        "consumer.session.timeout.ms", str(SESSION_SECONDS * 1000), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.GROUP, trial.stage.group, incremental_configs=[entry])
    admin = kafka.admin(trial.group.settings)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(10)


@pytest.mark.parametrize("mode", ["transactional", "external"])
def test_workers_that_come_leave_and_die(
    services: Services,
    database: str,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    monkeypatch.setenv("ONCEWARD_KAFKA_GROUP_PROTOCOL", "consumer")
    trial = Trial(Plan(mode=mode, keys=59, work_seconds=0.001), services, database, topic_prefix, tmp_path)
    shorten_the_session(trial)
    try:
        with Forwarder(database, services.bootstrap):
            trial.fleet.start_worker()
            with trial.writer.flowing(200):
                eventually(trial.ended, "command that has ended")
                started = time.monotonic()
                for change in range(CHANGES):
                    wait_until(started + 1.5 * change)
                    oldest = trial.fleet.staying()[0]
                    trial.fleet.start_worker()
                    if change % 2:
                        oldest.kill()
                    else:
                        oldest.leave()
            eventually(trial.drained, "end", 90)
    finally:
        trial.fleet.end()
    found = trial.problems()
    assert not found, "\n".join(map(str, found[:20]))
