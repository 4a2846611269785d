"""What is wrong on the server is said before anything is streamed, with what to do; a slot that missed rows is made good."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import psycopg
import pytest

from onceward_outbox_relay import slot
from onceward_outbox_relay.layout import Layout
from onceward_outbox_relay.relay import Relay, RelayOptions
from onceward_runtime.settings import Settings
from onceward_schemas.errors import DatabaseError
from tests.support.relay import make_topic, outbox_rows, publish, read, running_relay, slot_name, until
from tests.support.services import Services


def connect(dsn: str) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(dsn, autocommit=True)


@pytest.mark.parametrize(
    ("statement", "complaint"),
    [
        ("create publication p for all tables with (publish = 'insert')", "covers all tables"),
        ("create publication p for table onceward.dedupe with (publish = 'insert')", "covers onceward.dedupe"),
        ("create publication p for table onceward.outbox", "inserts and nothing else"),
        ("create publication p for table onceward.outbox with (publish = 'delete')", "inserts and nothing else"),
    ],
)
def test_a_publication_of_something_else_is_refused(database: str, statement: str, complaint: str) -> None:
    with connect(database) as connection:
        connection.execute(statement)
        with pytest.raises(DatabaseError, match=complaint) as caught:
            slot.ensure_publication(connection, "p", Layout())
    assert caught.value.remedy is not None
    assert "PUBLICATION" in caught.value.remedy


def test_a_role_without_the_right_is_told_the_statement(services: Services, database: str) -> None:
    name = slot_name(database)
    with connect(database) as connection:
        connection.execute(f"create role {name} login")
        connection.execute(f"set role {name}")
        try:
            with pytest.raises(slot.StreamingImpossibleError, match="may not replicate") as caught:
                slot.check_server(connection)
            with pytest.raises(DatabaseError, match="may not make it") as unpublished:
                slot.ensure_publication(connection, "p", Layout())
        finally:
            connection.execute("reset role")
            connection.execute(f"drop role {name}")
    assert "REPLICATION" in str(caught.value.remedy)
    assert "CREATE PUBLICATION" in str(unpublished.value.remedy)


def test_a_missing_table_is_explained(services: Services, database: str) -> None:
    options = RelayOptions(layout=Layout(table="nothing"))
    with pytest.raises(DatabaseError, match=r"no table onceward\.nothing"):
        Relay(Settings.model_validate({"database_url": database}), options).start()


def test_making_a_slot_names_the_transaction_that_it_waits_for(database: str) -> None:
    with connect(database) as connection, psycopg.connect(database, application_name="the blocker") as writer:
        writer.execute("create table written (n int)")
        with pytest.raises(DatabaseError, match="the blocker") as caught:
            slot.ensure_slot(connection, slot_name(database), timeout=timedelta(seconds=0.5))
        writer.rollback()
        assert "pg_terminate_backend" in str(caught.value.remedy)
        assert slot.ensure_slot(connection, slot_name(database), timeout=timedelta(seconds=5)).plugin == "pgoutput"


def test_a_slot_of_another_plugin_is_refused(database: str) -> None:
    with connect(database) as connection:
        connection.execute("select pg_create_logical_replication_slot(%s, 'test_decoding')", (slot_name(database),))
        with pytest.raises(DatabaseError, match="plug-in 'test_decoding'"):
            slot.ensure_slot(connection, slot_name(database), timeout=timedelta(seconds=5))


def test_rows_from_before_the_slot_and_from_behind_its_back_arrive(
    services: Services, database: str, topic_prefix: str
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "swept")
    publish(database, topic, ("a", b"1"))  # before there is a slot
    with running_relay(database, services.bootstrap):
        publish(database, topic, ("a", b"2"))
        until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
    name = slot_name(database)
    with connect(database) as connection:  # somebody drops the slot, and makes another one later
        connection.execute("select pg_drop_replication_slot(%s)", (name,))
        publish(database, topic, ("a", b"3"))
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    publish(database, topic, ("a", b"4"))
    with running_relay(database, services.bootstrap):
        publish(database, topic, ("a", b"5"))
        until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
    first = list(dict.fromkeys(record.value for record in read(services.bootstrap, topic, 5, 10)))
    assert first == [b"1", b"2", b"3", b"4", b"5"]


def test_a_slot_older_than_its_publication_is_made_anew(services: Services, database: str, topic_prefix: str) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "older")
    with connect(database) as connection:
        connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (slot_name(database),))
    publish(database, topic, ("a", b"1"))
    with running_relay(database, services.bootstrap):
        publish(database, topic, ("a", b"2"))
        until(lambda: outbox_rows(database) == 0, 15, "the outbox is empty")
    assert list(dict.fromkeys(r.value for r in read(services.bootstrap, topic, 2, 10))) == [b"1", b"2"]


def test_a_standby_takes_over_within_a_second(services: Services, database: str, topic_prefix: str) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "standby")
    settings = Settings.model_validate(
        {
            "database_url": database,
            "kafka_bootstrap_servers": services.bootstrap,
            "slot": slot_name(database),
        }
    )
    standby = Relay(settings)
    with running_relay(database, services.bootstrap) as leader:
        standby.start()
        until(standby.ready, 5, "the standby stands by")
        assert not standby.active
        stopping = threading.Thread(target=leader.stop)
        stopping.start()
        stopped = time.monotonic()
        until(lambda: standby.active, 5, "the standby took over")
        stopping.join()
        assert time.monotonic() - stopped < 2
    publish(database, topic, ("a", b"1"))
    assert [record.value for record in read(services.bootstrap, topic, 1, 10)] == [b"1"]
    standby.stop()


def test_without_replication_rights_auto_polls_and_says_so(
    services: Services, database: str, topic_prefix: str, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "poll")
    role = slot_name(database)
    with connect(database) as connection:
        connection.execute(f"create role {role} login password 'x'")
        connection.execute(f"grant usage on schema onceward to {role}")
        connection.execute(f"grant select, insert, update, delete on all tables in schema onceward to {role}")
    dsn = database.replace("//postgres@", f"//{role}:x@").replace("//postgres:onceward@", f"//{role}:x@")
    try:
        with running_relay(dsn, services.bootstrap):
            publish(database, topic, ("a", b"1"), ("a", b"2"))
            assert [record.value for record in read(services.bootstrap, topic, 2, 10)] == [b"1", b"2"]
            until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
        out, err = capfd.readouterr()
        assert "may not replicate" in out + err
    finally:
        with connect(database) as connection:
            connection.execute(f"drop owned by {role}")
            connection.execute(f"drop role {role}")
