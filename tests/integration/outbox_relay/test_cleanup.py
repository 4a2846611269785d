"""What Kafka has is deleted from the outbox, and nothing else; expired dedupe entries go too."""

from __future__ import annotations

import psycopg

from onceward_outbox_relay.cleanup import Cleanup
from onceward_outbox_relay.layout import Layout
from onceward_outbox_relay.replication import lsn_of
from tests.support.relay import outbox_rows, publish


def insert_position(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
    assert row is not None
    return lsn_of(str(row[0]))


def test_rows_go_once_their_position_is_acknowledged(database: str) -> None:
    publish(database, "t", ("a", b"1"), ("a", b"2"))
    with psycopg.connect(database, autocommit=True) as connection:
        cleanup = Cleanup(Layout())
        before = insert_position(connection) - 1
        cleanup.step(connection, before)
        assert cleanup.mark is not None
        assert outbox_rows(database) == 2
        publish(database, "t", ("a", b"3"))  # after the mark: not known to be in Kafka
        cleanup.step(connection, cleanup.mark.lsn)
        assert outbox_rows(database) == 1
        assert cleanup.mark is None
        cleanup.step(connection, before)
        assert outbox_rows(database) == 1


def test_a_row_committed_after_the_mark_by_an_older_transaction_stays(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection, psycopg.connect(database) as late:
        late.execute(
            "insert into onceward.outbox (id, aggregatetype, type, topic) values (gen_random_uuid(), 't', 'T', 't')"
        )
        publish(database, "t", ("a", b"1"))  # a later transaction, committed earlier
        cleanup = Cleanup(Layout())
        cleanup.step(connection, insert_position(connection))
        late.commit()
        if cleanup.mark is not None:
            cleanup.step(connection, cleanup.mark.lsn)
        assert outbox_rows(database) == 2  # neither is older than every transaction that was open at the mark
        cleanup.step(connection, 0)
        assert cleanup.mark is not None
        cleanup.step(connection, cleanup.mark.lsn)
        assert outbox_rows(database) == 0


def test_expired_dedupe_entries_are_deleted(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "insert into onceward.dedupe values ('T', 'old', gen_random_uuid(), now() - interval '1 s'),"
            " ('T', 'new', gen_random_uuid(), now() + interval '1 h')"
        )
        cleanup = Cleanup(Layout())
        cleanup.expiry_due = 0.0
        cleanup.expire(connection)
        assert connection.execute("select dedupe_key from onceward.dedupe").fetchall() == [("new",)]
