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

from tests.chaos.plan import Plan
from tests.chaos.trial import Trial
from tests.support.consumers import Forwarder, eventually
from tests.support.services import Services

PARTITIONS = 4


def trial_of(services: Services, database: str, prefix: str, logs: Path) -> Trial:
    return Trial(Plan(keys=59), services, database, prefix, logs)


def lane_of(trial: Trial) -> str:
    return trial.stage.lane


def delete(services: Services, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": services.bootstrap})
    admin.delete_topics([topic], operation_timeout=10)[topic].result()
    eventually(lambda: topic not in admin.list_topics(timeout=5).topics, "deletion")


def create(services: Services, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": services.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)], operation_timeout=10)[topic].result()
    eventually(lambda: topic in admin.list_topics(timeout=5).topics, "topic")


def committed(services: Services, trial: Trial) -> list[TopicPartition]:
    consumer = Consumer({"bootstrap.servers": services.bootstrap, "group.id": trial.stage.group})
    found = consumer.committed([TopicPartition(lane_of(trial), p) for p in range(PARTITIONS)], 10)
    consumer.close()
    return found


def commit(services: Services, trial: Trial, offsets: list[TopicPartition]) -> None:
    consumer = Consumer({"bootstrap.servers": services.bootstrap, "group.id": trial.stage.group})
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def test_a_late_commit_of_the_former_log_skips_nothing(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    trial = trial_of(services, database, topic_prefix, tmp_path)
    with Forwarder(database, services.bootstrap):
        with trial.group.running():
            trial.writer.write(400)
            eventually(trial.drained, "end of the first commands", 60)
        late = committed(services, trial)
        assert sum(max(0, partition.offset) for partition in late) >= 400
        delete(services, lane_of(trial))
        create(services, lane_of(trial))
        commit(services, trial, late)  # as one that was on its way does
        trial.writer.write(1000)  # the new log is longer than the offset
        with capture_logs() as lines, trial.group.running():
            eventually(trial.drained, "end of the second commands", 60)
    assert not trial.problems()
    restarted = [line for line in lines if line["event"] == "partition.restarted"]
    assert {line["partition"] for line in restarted} == {p.partition for p in late if p.offset >= 0}
    assert {line["reason"] for line in restarted} == {"recreated"}


def test_an_offset_beyond_the_end_skips_nothing(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    trial = trial_of(services, database, topic_prefix, tmp_path)
    commit(services, trial, [TopicPartition(lane_of(trial), p, 5000) for p in range(PARTITIONS)])
    with Forwarder(database, services.bootstrap), capture_logs() as lines:
        trial.writer.write(200)
        with trial.group.running():
            eventually(trial.drained, "end of the commands", 60)
            assert {partition.offset < 5000 for partition in committed(services, trial)} == {True}
    assert not trial.problems()
    assert "beyond_end" in {line["reason"] for line in lines if line["event"] == "partition.restarted"}


def test_a_running_worker_goes_on_with_the_new_log(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    trial = trial_of(services, database, topic_prefix, tmp_path)
    lane = lane_of(trial)
    with Forwarder(database, services.bootstrap), trial.group.running() as worker:
        trial.writer.write(400)
        eventually(trial.drained, "end of the first commands", 60)
        delete(services, lane)
        create(services, lane)  # at once: the client does not notice that its topic was away
        trial.writer.write(1000)
        eventually(trial.drained, "end of the second commands", 60)
        delete(services, lane)
        poller = worker._poller
        assert poller is not None
        eventually(lambda: all(tenure.topic != lane for tenure in poller.tenures()), "loss of the partitions")
        create(services, lane)
        trial.writer.write(200)
        eventually(trial.drained, "end of the third commands", 60)
    lost_or_doubled = [problem for problem in trial.problems() if problem.kind not in ("order", "overtaken")]
    assert not lost_or_doubled, (
        "the order within a key is lost where the client went on in a log it took for the former"
    )


def test_records_deleted_unread_are_told(services: Services, database: str, topic_prefix: str, tmp_path: Path) -> None:
    trial = trial_of(services, database, topic_prefix, tmp_path)
    lane = lane_of(trial)
    with Forwarder(database, services.bootstrap) as forwarder:
        commit(services, trial, [TopicPartition(lane, p, 0) for p in range(PARTITIONS)])
        trial.writer.write(400)
        eventually(
            lambda: len(forwarder.forwarded) == 400 and not trial.group.count("select count(*) from onceward.outbox"),
            "records",
        )
        admin = AdminClient({"bootstrap.servers": services.bootstrap})
        for future in admin.delete_records([TopicPartition(lane, p, 10) for p in range(PARTITIONS)]).values():
            future.result(10)
        with capture_logs() as lines, trial.group.running():
            done = "select count(*) from onceward.ledger where state in ('done', 'dead')"
            eventually(lambda: trial.group.count(done) == 400 - 10 * PARTITIONS, "end of the rest")
    expired = [line for line in lines if line["event"] == "records.expired"]
    assert {line["partition"]: line["records"] for line in expired} == dict.fromkeys(range(PARTITIONS), 10)
    assert {line["log_level"] for line in expired} == {"error"}
