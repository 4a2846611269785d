"""Troubles with commits: one line for each cause, none for what a rebalance explains, all of them counted."""

from __future__ import annotations

from uuid import UUID

from confluent_kafka import KafkaError, TopicPartition
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from onceward_consumer.commits import Commits
from onceward_consumer.tenures import Marks, Tenure

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


def test_a_commit_carries_the_id_of_its_log_and_who_goes_on_with_it() -> None:
    tenure = Tenure("lane", 0, None)
    tenure.topic_id = "0m7qtG8UTLSQQyudHPJzPA"
    tenure.offsets.begin(3)
    found = tenure.commit("a1")
    assert found is not None
    assert (found.offset, found.metadata) == (3, "topic-id 0m7qtG8UTLSQQyudHPJzPA held-by a1")
    tenure.offsets.add(4)
    tenure.finish(4)
    found = tenure.commit("a1")
    assert found is not None
    assert found.offset == 5
    assert tenure.commit("a1") is None


def test_a_partition_that_is_handed_over_says_so_even_where_nothing_has_happened() -> None:
    tenure = Tenure("lane", 0, None)
    assert tenure.commit(None) is None
    tenure.offsets.begin(3)
    tenure.commit("a1")
    found = tenure.commit(None)
    assert found is not None
    assert (found.offset, found.metadata) == (3, "")


def test_only_what_another_has_not_handed_over_makes_wary() -> None:
    marks = Marks(UUID(int=1))
    assert marks.is_foreign(f"topic-id x held-by {UUID(int=2).hex}")
    assert not marks.is_foreign(f"topic-id x held-by {UUID(int=1).hex}")
    assert not any(map(marks.is_foreign, ("topic-id x", "", None, "somebody's own words")))
