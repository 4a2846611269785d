"""A scheduler in a process of its own, to be killed and frozen: `python -m tests.support.scheduler_process app count`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from onceward_consumer.app import App
from onceward_runtime import log
from onceward_runtime.service import run_until_signal
from onceward_runtime.settings import load
from onceward_scheduler.delayed import DelayedMover
from onceward_scheduler.scheduler import Scheduler
from onceward_scheduler.ticks import Tick
from onceward_schemas import topics
from tests.support.report_command import JsonEncoder, MakeReport
from tests.support.services import ROOT, Services

PARTITIONS = 4


def make_app(name: str, count: int) -> App:
    """An application with `count` schedules, each every second."""
    app = App(name)

    def report(tick: Tick) -> MakeReport:
        return MakeReport(report=tick.schedule_id, date=tick.scheduled_at.isoformat())

    for position in range(count):
        app.schedule("every 1s", id=f"s{position}")(report)
    return app


def environment(services: Services, database: str) -> dict[str, str]:
    """What the process needs to find the services."""
    return os.environ | {
        "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS": services.bootstrap,
        "ONCEWARD_DATABASE_URL": database,
        "ONCEWARD_LOG_FORMAT": "json",
    }


def ensure_topic(services: Services) -> None:
    """Create the scheduler's topic if nobody has."""
    admin = AdminClient({"bootstrap.servers": services.bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topics.SCHEDULER, PARTITIONS, 1)], operation_timeout=10).values():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise


@contextmanager
def scheduler_process(
    services: Services, database: str, app: str, count: int, log_file: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A running scheduler; killed at the end if it still runs."""
    with log_file.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.scheduler_process", app, str(count)],
            cwd=ROOT,
            env=environment(services, database),
            stdout=output,
            stderr=output,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait()


def main() -> int:
    settings = load()
    log.configure(settings)
    app = make_app(sys.argv[1], int(sys.argv[2]))
    return run_until_signal([Scheduler(app, JsonEncoder(), settings), DelayedMover(settings)])


if __name__ == "__main__":
    sys.exit(main())
