"""The scheduler as a service on real Kafka and PostgreSQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import errors
from pydantic import SecretStr

from onceward_consumer.app import App
from onceward_runtime import postgres
from onceward_runtime.service import Service
from onceward_runtime.settings import Settings
from onceward_scheduler.emission import take_epoch
from onceward_scheduler.scheduler import _LIMITS, CHANNEL, Scheduler
from onceward_scheduler.ticks import Tick
from tests.support.report_command import JsonEncoder, MakeReport
from tests.support.scheduler_process import ensure_topic
from tests.support.services import Services

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def settings(services: Services, database: str) -> Settings:
    ensure_topic(services)
    return Settings(database_url=SecretStr(database), kafka_bootstrap_servers=services.bootstrap)


@contextmanager
def running(service: Service) -> Iterator[None]:
    service.start()
    try:
        yield
    finally:
        service.stop()


def report(tick: Tick) -> MakeReport:
    return MakeReport(report=tick.schedule_id, date=tick.scheduled_at.isoformat())


def app_with(**functions: Callable[[Tick], Any]) -> App:
    app = App(f"app-{uuid4().hex[:8]}")
    for name, function in functions.items():
        app.schedule("every 1s", id=name)(function)
    return app


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def ticks(connection: Connection, schedule: str = "a", outcome: str = "emitted") -> list[Any]:
    return [
        row[0]
        for row in connection.execute(
            "select scheduled_at from onceward.ticks where schedule_id = %s and outcome = %s order by 1",
            [schedule, outcome],
        )
    ]


def test_ticks_are_emitted_within_a_moment_of_their_instant(connection: Connection, settings: Settings) -> None:
    with running(Scheduler(app_with(a=report), JsonEncoder(), settings)):
        wait_until(lambda: len(ticks(connection)) >= 5)
    late = connection.execute(
        "select emitted_at - scheduled_at from onceward.ticks order by scheduled_at offset 2"
    ).fetchall()
    assert all(timedelta(0) <= lateness < timedelta(milliseconds=300) for (lateness,) in late)


def test_a_restart_neither_doubles_nor_loses_a_tick(connection: Connection, settings: Settings) -> None:
    app = app_with(a=report)
    for wanted in (2, 4, 6):
        with running(Scheduler(app, JsonEncoder(), settings)):
            wait_until(lambda wanted=wanted: len(ticks(connection)) >= wanted)  # type: ignore[misc]
    found = ticks(connection)
    assert found == [found[0] + timedelta(seconds=n) for n in range(len(found))]
    assert connection.execute("select count(*) from onceward.outbox").fetchall() == [(len(found),)]


def test_a_fenced_scheduler_asks_kafka_again_and_goes_on(connection: Connection, settings: Settings) -> None:
    app = app_with(a=report)
    scheduler = Scheduler(app, JsonEncoder(), settings)
    with running(scheduler):
        wait_until(lambda: len(ticks(connection)) >= 1)
        for partition in range(4):
            take_epoch(connection, app.name, partition, uuid4())
        before = len(ticks(connection))
        wait_until(lambda: len(ticks(connection)) >= before + 3)
        assert (scheduler.alive(), scheduler.ended) == (True, False)
    found = ticks(connection)
    assert found == [found[0] + timedelta(seconds=n) for n in range(len(found))]


def test_a_leader_frozen_inside_its_transaction_is_ended_by_the_server(
    connection: Connection, settings: Settings, database: str
) -> None:
    app = app_with(a=report)
    with postgres.connect(database, application_name="frozen", limits=_LIMITS) as frozen:
        for partition in range(4):
            take_epoch(frozen, app.name, partition, uuid4())
        frozen.commit()
        frozen.execute("select from onceward.scheduler_epochs where app = %s for share", [app.name])
        with running(Scheduler(app, JsonEncoder(), settings)):
            wait_until(lambda: len(ticks(connection)) >= 2)
        with pytest.raises(errors.IdleInTransactionSessionTimeout):
            frozen.execute("select 1")


def test_a_function_that_does_not_return_holds_up_its_own_schedule_only(
    connection: Connection, settings: Settings
) -> None:
    released = threading.Event()

    def hanging(tick: Tick) -> MakeReport:
        released.wait(30)
        return report(tick)

    with running(Scheduler(app_with(a=report, hung=hanging), JsonEncoder(), settings)):
        wait_until(lambda: len(ticks(connection)) >= 4)
        assert ticks(connection, "hung") == []
        released.set()
        wait_until(lambda: len(ticks(connection, "hung")) >= 4, 5)
    found = ticks(connection, "hung")
    assert found == [found[0] + timedelta(seconds=n) for n in range(len(found))]


def test_a_failing_function_is_tried_again_without_losing_its_tick(connection: Connection, settings: Settings) -> None:
    failed: list[Tick] = []

    def unsteady(tick: Tick) -> MakeReport:
        if len(failed) < 2:
            failed.append(tick)
            raise ConnectionError("not yet")
        return report(tick)

    with running(Scheduler(app_with(a=unsteady), JsonEncoder(), settings)):
        wait_until(lambda: len(ticks(connection)) >= 4)
    assert failed[0].scheduled_at == failed[1].scheduled_at == ticks(connection)[0]


def test_a_lost_connection_is_made_again(connection: Connection, settings: Settings) -> None:
    scheduler = Scheduler(app_with(a=report), JsonEncoder(), settings)
    with running(scheduler):
        wait_until(lambda: len(ticks(connection)) >= 1)
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name = 'onceward scheduler'"
        )
        before = len(ticks(connection))
        wait_until(lambda: len(ticks(connection)) >= before + 2)
        wait_until(scheduler.ready)
    found = ticks(connection)
    assert found == [found[0] + timedelta(seconds=n) for n in range(len(found))]


def test_a_change_made_elsewhere_is_noticed_at_once(connection: Connection, settings: Settings) -> None:
    app = App(f"app-{uuid4().hex[:8]}")
    app.schedule("0 0 1 1 *", id="yearly")(report)
    with running(Scheduler(app, JsonEncoder(), settings)):
        wait_until(lambda: bool(connection.execute("select from onceward.scheduler_epochs").fetchall()))
        time.sleep(0.5)  # it sleeps by now, for five seconds
        with connection.transaction():
            connection.execute("update onceward.schedules set next_at = clock_timestamp(), due_at = clock_timestamp()")
            connection.execute(f"notify {CHANNEL}")
        wait_until(lambda: len(ticks(connection, "yearly")) == 1, 2)
