"""A row that Kafka will never accept is kept with a reason, its key's later rows follow it, and everything else goes on."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from onceward_outbox_relay import decisions
from onceward_outbox_relay.decisions import Selection
from onceward_outbox_relay.relay import RelayOptions
from tests.support.relay import make_topic, outbox_rows, publish, read, running_relay, until
from tests.support.services import Services

QUICK = RelayOptions(grace=timedelta(seconds=0.5))


def parked(dsn: str) -> list[tuple[int, str, str]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute("select seq, reason, state from onceward.outbox_parked order by seq").fetchall()


def values(services: Services, topic: str, wanted: int) -> list[bytes | None]:
    return [record.value for record in read(services.bootstrap, topic, wanted, 10)]


def decide(dsn: str, what: str, seq: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        decision = decisions.replay if what == "replay" else decisions.discard
        assert decision(connection, Selection(seqs=(seq,)), actor="test", because="it is a test") == [seq]


def test_an_oversized_row_is_parked_and_its_followers_go_on_once_it_is_discarded(
    services: Services, database: str, topic_prefix: str
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "big")
    with running_relay(database, services.bootstrap, QUICK):
        big, second, third = publish(database, topic, ("a", b"x" * 2_000_000), ("a", b"2"), ("a", b"3"))
        publish(database, topic, ("b", b"other"))
        assert values(services, topic, 1) == [b"other"]
        until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
        assert parked(database) == [
            (big, "oversized", "parked"),
            (second, "follows", "parked"),
            (third, "follows", "parked"),
        ]
        decide(database, "discard", big)
        until(lambda: {state for _, _, state in parked(database)[1:]} == {"replayed"}, 10, "the followers are replayed")
        publish(database, topic, ("a", b"4"))
        until(lambda: len(values(services, topic, 4)) == 4, 10, "all arrived")
    assert [value for value in values(services, topic, 4) if value != b"other"] == [b"2", b"3", b"4"]


def test_a_topic_with_a_smaller_limit_parks_what_exceeds_it(
    services: Services, database: str, topic_prefix: str
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "small", **{"max.message.bytes": "9000"})
    with running_relay(database, services.bootstrap, QUICK):
        rows = [(f"k{i}", b"y" * 800) for i in range(100)]
        publish(database, topic, *rows[:50], ("big", b"x" * 20_000), *rows[50:])
        assert len(values(services, topic, 100)) >= 100
        until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
    assert [(reason, state) for _, reason, state in parked(database)] == [("oversized", "parked")]


def test_a_row_that_the_broker_refuses_does_not_take_its_neighbours_along(
    services: Services, database: str, topic_prefix: str
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "compact", **{"cleanup.policy": "compact"})
    insert = (
        "insert into onceward.outbox (id, aggregatetype, aggregateid, type, payload, topic) select gen_random_uuid(), 't',"
        " case when g <> 50 then 'k' || g end, 'T', g::text::bytea, %s from generate_series(1, 100) g"
    )
    with running_relay(database, services.bootstrap, QUICK):
        with psycopg.connect(database) as connection:  # compacted topics refuse records without a key, by the batch
            connection.execute(insert, (topic,))
        assert len({record.id for record in read(services.bootstrap, topic, 99, 15)}) == 99
        until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
    assert [(reason, state) for _, reason, state in parked(database)] == [("refused", "parked")]


@pytest.mark.parametrize("batch_size", [2_000, 1_000_000])
def test_what_the_broker_refuses_is_not_overtaken_by_its_key(
    services: Services, database: str, topic_prefix: str, batch_size: int
) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "shrunk")
    admin = AdminClient({"bootstrap.servers": services.bootstrap, "log_level": 0})
    smaller = ConfigEntry("max.message.bytes", "9000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[smaller])
    options = RelayOptions(producer={"batch.size": batch_size})
    with running_relay(database, services.bootstrap, options):
        publish(database, topic, ("a", b"1"))
        assert values(services, topic, 1) == [b"1"]  # the relay knows the topic's limit now, and it changes
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(10)
        insert = (
            "insert into onceward.outbox (id, aggregatetype, aggregateid, type, payload, topic)"
            " select gen_random_uuid(), 't', 'a', 'T', case when g = 50 then repeat('x', 20000) else 'y' || g end::bytea, %s"
            " from generate_series(2, 700) g"
        )
        with psycopg.connect(database) as connection:
            connection.execute(insert, (topic,))
        until(lambda: outbox_rows(database) == 0, 20, "the outbox is empty")
        found = parked(database)
        assert [(reason, state) for _, reason, state in found[:2]] == [("oversized", "parked"), ("follows", "parked")]
        assert len(found) == 700 - 49
        arrived = list(dict.fromkeys(values(services, topic, 49)))
        assert arrived == [b"1"] + [b"y%d" % number for number in range(2, 50)]
        decide(database, "discard", found[0][0])
        until(lambda: {state for _, _, state in parked(database)[1:]} == {"replayed"}, 20, "the followers are replayed")
    arrived = list(dict.fromkeys(values(services, topic, 699)))
    assert arrived == [b"1"] + [b"y%d" % number for number in range(2, 701) if number != 50]


def test_a_topic_that_is_deleted_while_the_relay_runs_is_missing(
    services: Services, database: str, topic_prefix: str
) -> None:
    other = make_topic(services.bootstrap, topic_prefix + "other")
    topic = make_topic(services.bootstrap, topic_prefix + "deleted")
    admin = AdminClient({"bootstrap.servers": services.bootstrap, "log_level": 0})
    with running_relay(database, services.bootstrap, QUICK):
        publish(database, topic, ("a", b"1"))
        until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
        admin.delete_topics([topic])[topic].result(10)
        publish(database, topic, ("a", b"2"))
        publish(database, other, ("a", b"at once"))
        assert values(services, other, 1)[0] == b"at once"
        until(lambda: [reason for _, reason, _ in parked(database)] == ["unknown_topic"], 20, "it is parked")
        until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")


def test_rows_of_a_missing_topic_are_parked_and_replayed_in_order_once_it_exists(
    services: Services, database: str, topic_prefix: str
) -> None:
    known = make_topic(services.bootstrap, topic_prefix + "known")
    missing = topic_prefix + "missing"
    with running_relay(database, services.bootstrap, QUICK):
        first, second = publish(database, missing, ("a", b"1"), ("a", b"2"))
        publish(database, known, ("a", b"at once"))
        assert values(services, known, 1) == [b"at once"]
        until(lambda: len(parked(database)) == 2, 10, "both are parked")
        assert [reason for _, reason, _ in parked(database)] == ["unknown_topic", "unknown_topic"]
        make_topic(services.bootstrap, missing)
        publish(database, missing, ("b", b"new"))
        assert values(services, missing, 1) == [b"new"]
        (third,) = publish(database, missing, ("a", b"3"))
        until(lambda: len(parked(database)) == 3, 10, "the third follows")
        for seq in (first, second):
            decide(database, "replay", seq)
        until(lambda: all(state == "replayed" for _, _, state in parked(database)), 10, f"{third} too is replayed")
    assert [value for value in values(services, missing, 4) if value != b"new"] == [b"1", b"2", b"3"]


def test_a_topic_that_appears_within_the_grace_period_loses_no_time(
    services: Services, database: str, topic_prefix: str
) -> None:
    topic = topic_prefix + "late"
    with running_relay(database, services.bootstrap, RelayOptions(grace=timedelta(seconds=30))):
        publish(database, topic, ("a", b"1"), ("a", b"2"))
        make_topic(services.bootstrap, topic)
        publish(database, topic, ("a", b"3"))
        assert values(services, topic, 3) == [b"1", b"2", b"3"]
        until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")
    assert parked(database) == []


@pytest.mark.parametrize(
    ("topic", "reason"), [("no such/topic!", "invalid_topic"), ("", "no_topic"), (".", "invalid_topic")]
)
def test_a_name_that_no_topic_can_have_is_parked_at_once(
    services: Services, database: str, topic_prefix: str, topic: str, reason: str
) -> None:
    with running_relay(database, services.bootstrap):
        publish(database, topic, ("a", b"1"))
        until(lambda: [row[1] for row in parked(database)] == [reason], 5, "it is parked")
        until(lambda: outbox_rows(database) == 0, 10, "the outbox is empty")


def test_a_replay_that_is_refused_again_stays_parked(services: Services, database: str, topic_prefix: str) -> None:
    topic = make_topic(services.bootstrap, topic_prefix + "again")
    with running_relay(database, services.bootstrap, QUICK):
        big, follower = publish(database, topic, ("a", b"x" * 2_000_000), ("a", b"2"))
        until(lambda: len(parked(database)) == 2, 10, "both are parked")
        decide(database, "replay", big)
        until(lambda: parked(database)[0] == (big, "oversized", "parked"), 10, "it is parked again")
        assert parked(database)[1] == (follower, "follows", "parked")


def test_with_the_policy_stop_the_relay_ends_and_the_row_stays(
    services: Services, database: str, topic_prefix: str
) -> None:
    with running_relay(database, services.bootstrap, RelayOptions(policy="stop")) as relay:
        publish(database, "no such/topic!", ("a", b"1"))
        until(lambda: relay.ended, 5, "the relay ended")
        assert "invalid_topic" in str(relay.error)
    assert outbox_rows(database) == 1
    assert parked(database) == []
