"""A worker with slow handlers is told to stop by SIGTERM, and then impatiently by a second signal.

Promised: it takes nothing new, finishes what it can and hands back the rest, and exits with 0 within its drain time-out; a
drain costs no attempt. A second signal ends it at once. Either way the next worker finishes everything, once and in order.
"""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.chaos.plan import Plan
from tests.chaos.trial import Trial
from tests.support.consumers import Forwarder, eventually
from tests.support.services import Services

MODES = ["transactional", "async", "external", "external-sync"]
DRAIN_SECONDS = 4.0
EXIT_SECONDS = 2.0  # of the interpreter, on a machine that is busy
CRASHED = "select count(*) from onceward.attempts where outcome = 'crashed'"


def trial_of(services: Services, dsn: str, prefix: str, logs: Path, mode: str, work_seconds: float) -> Trial:
    trial = Trial(Plan(mode=mode, keys=11, work_seconds=work_seconds), services, dsn, prefix, logs)
    trial.fleet._environment["ONCEWARD_DRAIN_TIMEOUT"] = str(DRAIN_SECONDS)
    return trial


def under_way(trial: Trial) -> int:
    """How many handlers can be seen to run: their transactions are open, or their commands leased."""
    return trial.group.count(
        "select (select count(*) from onceward.ledger where state = 'running') + (select count(*) from pg_stat_activity"
        " where datname = current_database() and application_name like 'onceward worker%%'"
        " and state = 'idle in transaction' and now() - xact_start > interval '0.5 s')"
    )


@pytest.mark.parametrize("mode", MODES)
def test_what_has_begun_is_finished(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, mode: str
) -> None:
    trial = trial_of(services, database, topic_prefix, tmp_path, mode, 0.2)
    try:
        with Forwarder(database, services.bootstrap):
            worker = trial.fleet.start_worker()
            trial.writer.write(120)
            eventually(trial.ended, "command that has ended")
            worker.leave()
            told = time.monotonic()
            assert worker.process.wait(DRAIN_SECONDS + 5) == 0
            assert time.monotonic() - told < DRAIN_SECONDS + EXIT_SECONDS
            assert trial.ended() < trial.published(), "it was in the middle of it"
            assert not trial.group.count(CRASHED), "a drain costs no attempt"
            assert not trial.group.count("select count(*) from onceward.workers"), "and leaves no lease"
            trial.fleet.start_worker()
            eventually(trial.drained, "end", 60)
    finally:
        trial.fleet.end()
    assert not trial.problems()


@pytest.mark.parametrize("mode", MODES)
def test_what_takes_longer_than_the_drain_is_handed_back(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, mode: str
) -> None:
    trial = trial_of(services, database, topic_prefix, tmp_path, mode, 3.5)
    try:
        with Forwarder(database, services.bootstrap):
            worker = trial.fleet.start_worker()
            trial.writer.write(4)
            eventually(lambda: under_way(trial), "call")
            worker.leave()
            told = time.monotonic()
            assert worker.process.wait(DRAIN_SECONDS + 5) == 0
            assert time.monotonic() - told < DRAIN_SECONDS + EXIT_SECONDS
            if mode != "external-sync":  # a call in a thread cannot be ended: its lease runs out
                assert not trial.group.count(CRASHED)
            trial.fleet.start_worker()
            eventually(trial.drained, "end", 90)
    finally:
        trial.fleet.end()
    assert not trial.problems()


@pytest.mark.parametrize(
    ("mode", "second"), [*((mode, signal.SIGTERM) for mode in MODES), ("transactional", signal.SIGINT)]
)
def test_a_second_signal_ends_it_at_once(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, mode: str, second: signal.Signals
) -> None:
    trial = trial_of(services, database, topic_prefix, tmp_path, mode, 0.5)
    try:
        with Forwarder(database, services.bootstrap):
            worker = trial.fleet.start_worker()
            trial.writer.write(30)
            eventually(trial.ended, "command that has ended")
            worker.leave()
            time.sleep(0.2)
            worker.process.send_signal(second)
            told = time.monotonic()
            assert worker.process.wait(3) == -second
            assert time.monotonic() - told < 1
            trial.fleet.start_worker()
            eventually(trial.drained, "end", 90)
    finally:
        trial.fleet.end()
    assert not trial.problems()
