"""A lane's topic is deleted and made again, as nobody should, while its group has offsets of the log that is gone.

Promised: commands of the new log are all run, whatever offsets are around, and the log says what happened. Records that the
broker deleted unread are named loudly.
"""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from structlog.testing import capture_logs

from tests.support.chaos import Attack
from tests.support.consumers import Forwarder, eventually
from tests.support.services import Services

PARTITIONS = 4


def attack_of(services: Services, database: str, prefix: str, logs: Path) -> Attack:
    return Attack(services, database, prefix, "sync", 0.0, logs)


def lane_of(attack: Attack) -> str:
    return attack.group.app.lanes[0]


def delete(services: Services, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": services.bootstrap})
    admin.delete_topics([topic], operation_timeout=10)[topic].result()
    eventually(lambda: topic not in admin.list_topics(timeout=5).topics, "deletion")


def create(services: Services, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": services.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)], operation_timeout=10)[topic].result()
    eventually(lambda: topic in admin.list_topics(timeout=5).topics, "topic")


def committed(services: Services, attack: Attack) -> list[TopicPartition]:
    consumer = Consumer({"bootstrap.servers": services.bootstrap, "group.id": attack.name})
    found = consumer.committed([TopicPartition(lane_of(attack), p) for p in range(PARTITIONS)], 10)
    consumer.close()
    return found


def commit(services: Services, attack: Attack, offsets: list[TopicPartition]) -> None:
    consumer = Consumer({"bootstrap.servers": services.bootstrap, "group.id": attack.name})
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def test_a_late_commit_of_the_former_log_skips_nothing(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    attack = attack_of(services, database, topic_prefix, tmp_path)
    with Forwarder(database, services.bootstrap):
        with attack.group.running():
            attack.publish(400)
            eventually(attack.finished, "end of the first commands")
        late = committed(services, attack)
        assert sum(max(0, partition.offset) for partition in late) >= 400
        delete(services, lane_of(attack))
        create(services, lane_of(attack))
        commit(services, attack, late)  # as one that was on its way does
        attack.publish(1000)  # the new log is longer than the offset
        with capture_logs() as lines, attack.group.running():
            eventually(attack.finished, "end of the second commands")
    assert not attack.problems()
    restarted = [line for line in lines if line["event"] == "partition.restarted"]
    assert {line["partition"] for line in restarted} == {p.partition for p in late if p.offset >= 0}
    assert {line["reason"] for line in restarted} == {"recreated"}


def test_an_offset_beyond_the_end_skips_nothing(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    attack = attack_of(services, database, topic_prefix, tmp_path)
    commit(services, attack, [TopicPartition(lane_of(attack), p, 5000) for p in range(PARTITIONS)])
    with Forwarder(database, services.bootstrap), capture_logs() as lines:
        attack.publish(200)
        with attack.group.running():
            eventually(attack.finished, "end of the commands")
            assert {partition.offset < 5000 for partition in committed(services, attack)} == {True}
    assert not attack.problems()
    assert "beyond_end" in {line["reason"] for line in lines if line["event"] == "partition.restarted"}


def test_a_running_worker_goes_on_with_the_new_log(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    attack = attack_of(services, database, topic_prefix, tmp_path)
    lane = lane_of(attack)
    with Forwarder(database, services.bootstrap), attack.group.running() as worker:
        attack.publish(400)
        eventually(attack.finished, "end of the first commands")
        delete(services, lane)
        create(services, lane)  # at once: the client does not notice that its topic was away
        attack.publish(1000)
        eventually(attack.finished, "end of the second commands")
        delete(services, lane)
        poller = worker._poller
        assert poller is not None
        eventually(lambda: all(tenure.topic != lane for tenure in poller.tenures()), "loss of the partitions")
        create(services, lane)
        attack.publish(200)
        eventually(attack.finished, "end of the third commands")
    lost_or_doubled = [problem for problem in attack.problems() if " after " not in problem]
    assert not lost_or_doubled, (
        "the order within a key is lost where the client went on in a log it took for the former"
    )


def test_records_deleted_unread_are_told(services: Services, database: str, topic_prefix: str, tmp_path: Path) -> None:
    attack = attack_of(services, database, topic_prefix, tmp_path)
    lane = lane_of(attack)
    with Forwarder(database, services.bootstrap) as forwarder:
        commit(services, attack, [TopicPartition(lane, p, 0) for p in range(PARTITIONS)])
        attack.publish(400)
        eventually(
            lambda: len(forwarder.forwarded) == 400 and not attack.group.count("select count(*) from onceward.outbox"),
            "records",
        )
        admin = AdminClient({"bootstrap.servers": services.bootstrap})
        for future in admin.delete_records([TopicPartition(lane, p, 10) for p in range(PARTITIONS)]).values():
            future.result(10)
        with capture_logs() as lines, attack.group.running():
            done = "select count(*) from onceward.ledger where state in ('done', 'dead')"
            eventually(lambda: attack.group.count(done) == 400 - 10 * PARTITIONS, "end of the rest")
    expired = [line for line in lines if line["event"] == "records.expired"]
    assert {line["partition"]: line["records"] for line in expired} == dict.fromkeys(range(PARTITIONS), 10)
    assert {line["log_level"] for line in expired} == {"error"}
