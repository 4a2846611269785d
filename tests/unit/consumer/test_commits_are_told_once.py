"""Troubles with commits: one line for each cause, none for what a rebalance explains, all of them counted."""

from __future__ import annotations

from confluent_kafka import KafkaError, TopicPartition
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from onceward_consumer.commits import Commits
from onceward_consumer.tenures import Tenure

A, B = ("lane", 0), ("lane", 1)
GONE = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)


def test_a_cause_is_told_once_until_it_changes() -> None:
    commits = Commits("g1")
    with capture_logs() as lines:
        for _ in range(10):
            commits.failed(GONE, [A, B])
            commits.failed(GONE, [A])
        assert len(lines) == 1
        commits.failed(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE), [A])
        assert len(lines) == 2
        commits.done([TopicPartition(*B)])
        commits.failed(GONE, [B])
        assert len(lines) == 3
        commits.forget([Tenure(*B, None)])
        commits.failed(GONE, [B])
        assert len(lines) == 4
    assert {line["event"] for line in lines} == {"offsets.failed"}


def test_what_a_rebalance_explains_is_counted_and_not_told() -> None:
    commits = Commits("g2")
    with capture_logs() as lines:
        for code in (KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS, KafkaError.UNKNOWN_MEMBER_ID):
            commits.failed(KafkaError(code), [A])
    assert not lines
    counted = {"group": "g2", "outcome": "failed"}
    assert REGISTRY.get_sample_value("onceward_offset_commits_total", counted) == 3


def test_a_commit_carries_the_id_of_its_log() -> None:
    tenure = Tenure("lane", 0, None)
    tenure.topic_id = "0m7qtG8UTLSQQyudHPJzPA"
    tenure.offsets.add(4)
    tenure.finish(4)
    found = tenure.commit()
    assert found is not None
    assert (found.offset, found.metadata) == (5, "topic-id 0m7qtG8UTLSQQyudHPJzPA")
    assert tenure.commit() is None
