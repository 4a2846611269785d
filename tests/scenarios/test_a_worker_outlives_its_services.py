"""PostgreSQL, Kafka and the registry go away under a running worker, one after the other, and come back.

Promised: the worker stays alive and says that it is not ready while it cannot reach the database; it drops nothing and
spends no attempts; everything published meanwhile takes effect once, in order of its key.
"""

from __future__ import annotations

from pathlib import Path

from onceward_consumer.worker import Worker
from onceward_devstack.stack import Stack
from tests.support.chaos import Attack
from tests.support.consumers import Forwarder, eventually
from tests.support.databases import fresh_database
from tests.support.services import Services


def test_a_worker_outlives_its_services(own_stack: Stack, tmp_path: Path) -> None:
    stack = own_stack
    services = Services(stack.kafka.bootstrap, stack.registry.url, stack.postgres.dsn, stack)
    with fresh_database(stack.postgres.dsn) as dsn:
        attack = Attack(services, dsn, "outlive.", "sync", 0.0, tmp_path)
        group = attack.group
        with Forwarder(dsn, stack.kafka.bootstrap), group.running() as worker:
            attack.publish(200)
            eventually(attack.finished, "first commands")
            attack.publish(400)
            stack.postgres.kill()
            eventually(lambda: not worker.ready(), "unready worker")
            assert worker.alive()
            stack.postgres.start()
            again(attack, worker, "PostgreSQL")
            stack.registry.stop()
            again(attack, worker, "no registry")
            stack.kafka.kill()
            attack.publish(200)
            stack.kafka.start()
            again(attack, worker, "Kafka")
            assert worker.alive()


def again(attack: Attack, worker: Worker, what: str) -> None:
    attack.publish(200)
    eventually(attack.finished, f"end of the commands after {what}", 60)
    eventually(worker.ready, f"ready worker after {what}", 60)
    assert not attack.problems()
    failures = attack.group.count("select count(*) from onceward.attempts where reason not in ('not_yet', 'never')")
    assert not failures, "an outage costs no attempts"
