"""The shared fixtures give working, separate services."""

from __future__ import annotations

import json
import urllib.request

import psycopg
import pytest

from tests.support.databases import connect_to_server, fresh_database
from tests.support.services import Services
from tests.support.topics import create_topics, delete_topics, topic_names


def test_all_three_services_answer(services: Services, topic_prefix: str) -> None:
    create_topics(services.bootstrap, {f"{topic_prefix}orders": 3})
    assert f"{topic_prefix}orders" in topic_names(services.bootstrap)
    with urllib.request.urlopen(f"{services.registry_url}/subjects", timeout=10) as answer:
        assert isinstance(json.load(answer), list)
    with psycopg.connect(services.dsn) as connection:
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)


def test_topics_are_deleted_by_prefix_only(services: Services, topic_prefix: str) -> None:
    mine, other = f"{topic_prefix}a.x", f"{topic_prefix}b.x"
    create_topics(services.bootstrap, {mine: 1, other: 1})
    delete_topics(services.bootstrap, f"{topic_prefix}a.")
    left = topic_names(services.bootstrap)
    assert mine not in left
    assert other in left


def test_a_database_belongs_to_one_test(database: str, services: Services, migrated_template: str) -> None:
    with fresh_database(services.dsn, migrated_template) as other, psycopg.connect(other) as connection:
        connection.execute("CREATE TABLE mark (id int)")
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT to_regclass('mark')").fetchone() == (None,)


def test_a_database_has_all_tables(database: str) -> None:
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT to_regclass('onceward.outbox') IS NOT NULL").fetchone() == (True,)


def test_a_dropped_database_takes_sessions_and_slots_with_it(services: Services, migrated_template: str) -> None:
    with fresh_database(services.dsn, migrated_template) as dsn:
        name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
        left_open = psycopg.connect(dsn)
        left_open.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"slot_{name}"])
    with connect_to_server(services.dsn) as connection:
        assert connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None
        assert connection.execute("SELECT 1 FROM pg_replication_slots WHERE database = %s", [name]).fetchone() is None
    with pytest.raises(psycopg.OperationalError):
        left_open.execute("SELECT 1")
