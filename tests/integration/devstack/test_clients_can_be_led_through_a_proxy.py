"""A broker that is told of a proxy sends the clients behind it through it, so that each can be cut off alone."""

from __future__ import annotations

import psycopg
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.chaos.servers import Door, Servers, own_servers


def brokers(door: Door, seconds: float) -> set[int]:
    """Their ports, as a client behind the door is told."""
    client = AdminClient({"bootstrap.servers": f"127.0.0.1:{door.kafka.port}", "log_level": 0})
    return {broker.port for broker in client.list_topics(timeout=seconds).brokers.values()}


def test_a_client_behind_a_proxy_is_cut_off_alone() -> None:
    with own_servers(doors=2) as servers:
        first, second = servers.doors
        for door in servers.doors:
            assert brokers(door, 10) == {door.kafka.port}
        first.kafka.stall()
        with pytest.raises(KafkaException):
            brokers(first, 1)
        assert brokers(second, 10)
        first.resume()
        assert brokers(first, 10)
        _its_sessions(servers, first)


def _its_sessions(servers: Servers, door: Door) -> None:
    dsn = door.environment(servers.stack.postgres.dsn)["ONCEWARD_DATABASE_URL"]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("select 1")
        door.postgres.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select pg_sleep(5)")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    door.resume()
    with psycopg.connect(dsn) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
