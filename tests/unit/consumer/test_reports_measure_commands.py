"""Metrics of a group tell how long commands took, counted from when they could first run; each command counts."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import REGISTRY

from onceward_consumer.clocks import DatabaseClock
from onceward_consumer.deliveries import Delivery
from onceward_consumer.handlers import Handler
from onceward_consumer.items import Engine, Item
from onceward_consumer.outcomes import BEYOND_LEDGER, Dead, Done, Failed, Outcome
from onceward_consumer.policy import fixed
from onceward_consumer.reports import report
from onceward_consumer.settle import holds_changed
from onceward_schemas.envelope import Context
from tests.support.commands import Increment


@pytest.fixture
def lane() -> str:
    """One that no other test counts on."""
    return f"lane-{uuid.uuid4().hex[:8]}"


def made(
    lane: str,
    outcome: Outcome,
    *,
    published: timedelta = timedelta(seconds=20),
    not_before: timedelta | None = None,
    started: float = 3.0,
    attempt: int = 1,
) -> Item:
    """A strict command that was published so long ago, started so many seconds ago and ran for one second."""
    now = datetime.now(UTC)
    handler = Handler(
        command=Increment, function=lambda c, x: None, lane=lane, is_async=False, order="strict", retry=fixed("1s", attempts=3)
    )  # fmt: skip
    identity = uuid.UUID(int=int((now - published).timestamp() * 1000) << 80 | 7 << 76 | 2 << 62 | 1)
    context = Context(not_before=now - not_before if not_before is not None else None).to_json()
    found = [("id", str(identity).encode()), ("type", handler.type.encode()), ("context", (context or "").encode())]
    delivery = Delivery(
        topic=lane, partition=0, offset=0, timestamp_ms=0, key=b"k", payload=b"", headers=found, lane=lane,  # type: ignore[arg-type]
        assignment=None, handlers={handler.type: handler},
    )  # fmt: skip
    item = Item(delivery, identity, f"{identity.int:032x}", delivery.envelope, handler, Increment(counter="k"), outcome)
    item.started, item.seconds, item.attempt = time.perf_counter() - started, 1.0, attempt
    return item


def told(items: Sequence[Item], lane: str, metric: str) -> tuple[float, float]:
    """How many observations a metric has, and their sum."""
    labels = {"lane": lane, "type": Increment.SCHEMA.name}
    count = REGISTRY.get_sample_value(f"onceward_{metric}_seconds_count", labels) or 0.0
    return count, REGISTRY.get_sample_value(f"onceward_{metric}_seconds_sum", labels) or 0.0


ENGINE = Engine(
    group="g", incarnation=uuid.uuid4(), worker="w", code_version=None, codec=None, clock=DatabaseClock(),  # type: ignore[arg-type]
    handlers={}, reach=timedelta(days=30), lock_timeout=timedelta(seconds=1),
)  # fmt: skip


def test_start_and_success_are_counted_from_publishing(lane: str) -> None:
    items = [made(lane, Done()), made(lane, Done(), published=timedelta(seconds=40))]
    report(items, ENGINE)
    assert told(items, lane, "start") == pytest.approx((2, 17 + 37), abs=0.5)
    assert told(items, lane, "done") == pytest.approx((2, 20 + 40), abs=0.5)
    assert told(items, lane, "handler") == (2, 2.0)


def test_they_are_counted_from_not_before_where_that_is_later(lane: str) -> None:
    items = [made(lane, Done(), published=timedelta(days=60), not_before=timedelta(seconds=10))]
    report(items, ENGINE)
    assert told(items, lane, "start") == pytest.approx((1, 7), abs=0.5)
    assert told(items, lane, "done") == pytest.approx((1, 10), abs=0.5)


def test_a_further_attempt_is_no_first_start_and_a_failure_no_success(lane: str) -> None:
    items = [made(lane, Done(), attempt=2), made(lane, Failed("why", "", timedelta(seconds=1)))]
    report(items, ENGINE)
    assert told(items, lane, "start")[0] == 1
    assert told(items, lane, "done")[0] == 1
    assert told(items, lane, "handler")[0] == 2


def test_what_was_not_called_is_not_measured(lane: str) -> None:
    item = made(lane, Done())
    item.again()
    item.outcome = BEYOND_LEDGER
    report([item], ENGINE)
    assert told([item], lane, "handler") == told([item], lane, "start") == (0, 0)


def test_a_command_beyond_the_ledger_does_not_hold_its_strict_key(lane: str) -> None:
    now = datetime.now(UTC)
    assert holds_changed([made(lane, BEYOND_LEDGER)], now) == ({}, set())
    held, _ = holds_changed([made(lane, Dead("bad", ""))], now)
    assert held.keys() == {(lane, "k")}
