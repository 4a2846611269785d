"""PostgreSQL and Kafka restart or die while services write: the relay reconnects by itself, and every committed row arrives,
in order within its key, without an operator. A relay that stands by takes over from one that is killed or frozen."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import psycopg

from onceward_devstack.stack import Stack
from tests.support.databases import fresh_database, migrate
from tests.support.relay import (
    RelayProcess,
    Writers,
    check_promises,
    make_topic,
    outbox_rows,
    read,
    slot_name,
    until,
)
from tests.support.services import Services


def test_restarts_of_both_servers_are_only_delay(own_stack: Stack, tmp_path: Path) -> None:
    bootstrap = own_stack.kafka.bootstrap
    with fresh_database(own_stack.postgres.dsn) as dsn:
        migrate(dsn)
        topic = make_topic(bootstrap, "restarts")
        relay = RelayProcess(dsn, bootstrap, tmp_path / "relay.log")
        relay.wait_for("relay.active")
        writers = Writers(dsn, topic, threads=2)
        try:
            progress(writers)
            own_stack.kafka.kill()
            before = outbox_rows(dsn)
            progress(writers)  # commits go on without Kafka
            time.sleep(1)  # the clean-up looks four times a second, and must find nothing to delete
            assert outbox_rows(dsn) >= before + 150
            own_stack.kafka.start()
            until(lambda: outbox_rows(dsn) < writers.count, 30, "the backlog shrinks")
            own_stack.postgres.restart()  # a fast shutdown must not hang on the relay
            progress(writers)
            own_stack.postgres.kill()
            own_stack.postgres.start()
            progress(writers)
            own_stack.kafka.restart()
            progress(writers)
        finally:
            committed = writers.stop()
        until(lambda: outbox_rows(dsn) == 0, 30, "the outbox is empty")
        check_promises(read(bootstrap, topic, len(committed.rows), 30), committed)
        assert relay.process.poll() is None
        assert relay.stop() == 0


def test_a_standby_takes_over_from_a_killed_and_from_a_frozen_relay(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "takeover")
    relays = [RelayProcess(database, services.bootstrap, tmp_path / "0.log")]
    relays[0].wait_for("relay.active")
    for number in (1, 2):
        relays.append(RelayProcess(database, services.bootstrap, tmp_path / f"{number}.log"))
        relays[number].wait_for("relay.standby")
    writers = Writers(database, topic, threads=2)
    try:
        progress(writers)
        relays[0].kill()
        until(lambda: any(relay.said("relay.active") for relay in relays[1:]), 5, "a standby took over")
        leader, last = sorted(relays[1:], key=lambda relay: not relay.said("relay.active"))
        progress(writers)
        os.kill(leader.process.pid, signal.SIGSTOP)
        last.wait_for("relay.active", 20)  # the server's time-out for a silent relay is ten seconds
        progress(writers)
        os.kill(leader.process.pid, signal.SIGCONT)
        progress(writers)
    finally:
        committed = writers.stop()
    check_promises(read(services.bootstrap, topic, len(committed.rows)), committed)
    until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
    assert [relay.stop() for relay in relays[1:]] == [0, 0]


def test_a_slot_dropped_under_load_costs_repeats_and_nothing_else(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "dropped")
    relay = RelayProcess(database, services.bootstrap, tmp_path / "relay.log")
    relay.wait_for("relay.active")
    writers = Writers(database, topic, threads=2)
    try:
        for _ in range(3):
            progress(writers)
            drop_slot(database, slot_name(database))
            until(lambda: slot_is_active(database), 15, "the slot is there again")
        progress(writers)
    finally:
        committed = writers.stop()
    check_promises(read(services.bootstrap, topic, len(committed.rows)), committed)
    until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
    assert relay.said("relay.swept")
    assert relay.stop() == 0


def progress(writers: Writers, rows: int = 150) -> None:
    """Wait until the writers have committed some more."""
    before = writers.count
    until(lambda: writers.count >= before + rows or writers.error is not None, 30, "the writers make progress")


def drop_slot(dsn: str, name: str) -> None:
    """End its sender and drop it before the relay is back."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        dropped = threading.Event()
        while not dropped.is_set():
            connection.execute(
                "select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = %s", (name,)
            )
            try:
                connection.execute("select pg_drop_replication_slot(%s)", (name,))
                dropped.set()
            except psycopg.errors.ObjectInUse:
                continue
            except psycopg.errors.UndefinedObject:
                dropped.set()


def slot_is_active(dsn: str) -> bool:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "select active from pg_replication_slots where slot_name = %s", (slot_name(dsn),)
        ).fetchone()
        return bool(row and row[0])
