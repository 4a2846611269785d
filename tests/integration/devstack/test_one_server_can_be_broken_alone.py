"""A server of a test's own stack can be killed, frozen and started again; it keeps its port and its data."""

from __future__ import annotations

import threading

import psycopg
import pytest

from onceward_devstack.stack import Stack
from tests.support.databases import fresh_database
from tests.support.topics import create_topics, topic_names


def test_servers_come_back_on_their_ports_with_their_data(own_stack: Stack) -> None:
    postgres, kafka = own_stack.postgres, own_stack.kafka
    bootstrap = kafka.bootstrap
    with fresh_database(postgres.dsn) as dsn:
        with psycopg.connect(dsn) as connection:
            connection.execute("CREATE TABLE kept (id int)")
        session = psycopg.connect(dsn)
        postgres.kill()
        assert not postgres.running
        with pytest.raises(psycopg.OperationalError):
            session.execute("SELECT 1")
        postgres.start()
        postgres.restart()
        with psycopg.connect(dsn) as connection:
            assert connection.execute("SELECT to_regclass('kept') IS NOT NULL").fetchone() == (True,)
            frozen_servers_answer_nobody(own_stack, dsn)

    create_topics(bootstrap, {"kept": 1})
    kafka.kill()
    kafka.kill()
    thread = threading.Thread(target=kafka.start)  # ends before the server is used
    thread.start()
    thread.join()
    assert kafka.bootstrap == bootstrap
    assert "kept" in topic_names(bootstrap)


def frozen_servers_answer_nobody(stack: Stack, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        stack.postgres.freeze()
        answered = threading.Event()

        def ask() -> None:
            connection.execute("SELECT 1")
            answered.set()

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            assert not answered.wait(0.2)
        finally:
            stack.postgres.resume()
        assert answered.wait(5)
        thread.join()
