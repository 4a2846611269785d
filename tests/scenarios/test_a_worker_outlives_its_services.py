"""PostgreSQL, Kafka and the registry go away under a running worker, one after the other, and come back.

Promised: the worker stays alive and says that it is not ready while it cannot reach the database; it drops nothing and
spends no attempts; everything published meanwhile takes effect once, in order of its key.
"""

from __future__ import annotations

from pathlib import Path

from onceward_consumer.worker import Worker
from onceward_devstack.stack import Stack
from tests.chaos.plan import Plan
from tests.chaos.trial import Trial
from tests.support.consumers import Forwarder, eventually
from tests.support.databases import fresh_database
from tests.support.services import Services

MEANT = ("not_yet", "connection_error", "connection", "never", "key_error", "attempts_exhausted")
"""The last of commands that are meant to exhaust their attempts; one that is not is among the trial's problems."""


def test_a_worker_outlives_its_services(own_stack: Stack, tmp_path: Path) -> None:
    stack = own_stack
    services = Services(stack.kafka.bootstrap, stack.registry.url, stack.postgres.dsn, stack)
    with fresh_database(stack.postgres.dsn) as dsn:
        trial = Trial(Plan(keys=59), services, dsn, "outlive.", tmp_path)
        write = trial.writer.write
        with Forwarder(dsn, stack.kafka.bootstrap), trial.group.running() as worker:
            write(200)
            eventually(trial.drained, "first commands")
            write(400)
            stack.postgres.kill()
            eventually(lambda: not worker.ready(), "unready worker")
            assert worker.alive()
            stack.postgres.start()
            again(trial, worker, "PostgreSQL")
            stack.registry.stop()
            again(trial, worker, "no registry")
            stack.kafka.kill()
            write(200)
            stack.kafka.start()
            again(trial, worker, "Kafka")
            assert worker.alive()


def again(trial: Trial, worker: Worker, what: str) -> None:
    trial.writer.write(200)
    eventually(trial.drained, f"end of the commands after {what}", 60)
    eventually(worker.ready, f"ready worker after {what}", 60)
    assert not trial.problems()
    failures = trial.group.query("select reason, error from onceward.attempts where reason <> all(%s)", list(MEANT))
    assert not failures, "an outage costs no attempts"
