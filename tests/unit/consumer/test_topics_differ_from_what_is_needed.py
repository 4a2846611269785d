"""Every topic that an app needs is known by name, and every difference that could lose or delay a command is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from onceward_consumer import topics
from onceward_consumer.app import App
from onceward_consumer.policy import exponential, fixed, never
from onceward_consumer.topics import Difference, Found, apply, desired, differences, leftover_tiers, plan
from onceward_consumer.worker import Worker
from onceward_runtime.settings import Settings
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.errors import AppError


def command(name: str, lane: str) -> type[Command]:
    schema = CommandSchema(name=name, version=1, lane=lane, key="who", aggregate="employee", avro={})
    return type(name, (Command,), {"SCHEMA": schema})


def handle(command: Any, ctx: Any) -> None:
    """Does nothing."""


@pytest.fixture
def app() -> App:
    app = App("hr")
    app.handler(command("Move", "moves"), retry=fixed("10s"))(handle)
    app.handler(command("Pay", "moves"), retry=exponential("1s", "90s", attempts=3, factor=90))(handle)
    app.handler(command("Ask", "asks"), retry=never)(handle)
    return app


def all_right(app: App, partitions: int = 4) -> dict[str, Found]:
    return {topic.name: Found(partitions=partitions) for topic in desired(app)}


def test_an_app_needs_lanes_tiers_and_dead_letter_topics(app: App) -> None:
    assert [(topic.name, topic.role) for topic in desired(app)] == [
        ("asks", "lane"),
        ("moves", "lane"),
        ("asks.hr.dlq", "dead letters"),
        ("moves.hr.retry.1s", "retry"),
        ("moves.hr.retry.10s", "retry"),
        ("moves.hr.retry.90s", "retry"),
        ("moves.hr.dlq", "dead letters"),
    ]


def test_an_app_with_schedules_needs_the_schedulers_topic(app: App) -> None:
    app.schedule("0 7 * * *")(_tick)
    assert desired(app)[-1].name == "onceward.scheduler"


def _tick(tick: Any) -> None:
    """Does nothing."""


def test_an_app_without_handlers_is_refused_before_any_server_is_asked(topic_calls: Calls) -> None:
    empty = App("empty")
    for call in topic_calls:
        with pytest.raises(
            AppError, match=r"The app 'empty' has no handlers\. Import the modules that declare them in"
        ):
            call(empty)


def test_a_worker_needs_handlers_also_where_there_are_schedules(
    topic_calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking = App("ticking")
    ticking.schedule("0 7 * * *")(_tick)
    plan_, _, worker = topic_calls
    with pytest.raises(AppError, match="has no handlers"):
        worker(ticking)
    monkeypatch.setattr(topics, "_look", lambda app, settings: {})
    assert [difference.topic for difference in plan_(ticking)] == ["onceward.scheduler"]


Calls: TypeAlias = tuple[
    Callable[[App], tuple[Difference, ...]], Callable[[App], tuple[Difference, ...]], Callable[[App], None]
]


@pytest.fixture
def topic_calls() -> Calls:
    """Plan, apply and a worker's start, with addresses where nobody answers."""
    settings = Settings(
        kafka_bootstrap_servers="127.0.0.1:1",
        database_url="postgresql://127.0.0.1:1/none",  # type: ignore[arg-type]
        registry_url="http://127.0.0.1:1",
    )
    return (
        lambda app: plan(app, settings),
        lambda app: apply(app, settings),
        lambda app: Worker(app, settings).start(),
    )


def test_nothing_differs_where_all_is_right(app: App) -> None:
    assert differences(app, all_right(app)) == ()


def test_missing_topics_are_made_with_the_partitions_of_their_lane(app: App) -> None:
    missing = differences(app, {"moves": Found(partitions=9)})
    assert {d.topic: d.partitions for d in missing} == {
        "asks": 6,
        "asks.hr.dlq": 6,
        "moves.hr.retry.1s": 9,
        "moves.hr.retry.10s": 9,
        "moves.hr.retry.90s": 9,
        "moves.hr.dlq": 9,
    }
    assert all(d.kind == "missing" and d.change == f"create it with {d.partitions} partitions" for d in missing)
    assert all(d.settings["cleanup.policy"] == "delete" for d in missing)


def test_a_new_tier_keeps_records_longer_than_any_wait(app: App) -> None:
    kept = {d.topic: int(d.settings["retention.ms"]) for d in differences(app, {}) if d.role == "retry"}
    assert min(kept.values()) > 7 * 86_400_000 + 3_600_000


def test_a_tier_with_fewer_partitions_than_its_lane_is_grown(app: App) -> None:
    [found] = differences(app, all_right(app) | {"moves.hr.retry.10s": Found(partitions=3)})
    assert (found.kind, found.partitions, found.repartitions) == ("few_partitions", 4, False)
    assert found.says == "has 3 partitions, its lane has 4"


def test_a_tier_with_more_partitions_than_its_lane_needs_a_person(app: App) -> None:
    [found] = differences(app, all_right(app) | {"moves.hr.retry.10s": Found(partitions=5)})
    assert (found.kind, found.change, found.stops_workers) == ("many_partitions", None, True)
    assert "delete it and apply again" in found.says


def test_dead_letter_topics_may_have_any_number_of_partitions(app: App) -> None:
    assert differences(app, all_right(app) | {"moves.hr.dlq": Found(partitions=1)}) == ()


def test_growing_a_lane_grows_its_tiers_and_is_marked(app: App) -> None:
    found = differences(app, all_right(app), partitions=5)
    assert {d.topic for d in found if d.repartitions} == {"asks", "moves"}
    assert {d.topic for d in found if d.kind == "few_partitions" and not d.repartitions} == {
        f"moves.hr.retry.{label}" for label in ("1s", "10s", "90s")
    }


def test_a_lane_with_more_partitions_than_asked_for_is_left(app: App) -> None:
    assert differences(app, all_right(app), partitions=2) == ()


@pytest.mark.parametrize(
    ("topic", "settings", "change"),
    [
        ("moves", {"cleanup.policy": "compact"}, "set cleanup.policy to delete"),
        ("moves.hr.retry.1s", {"cleanup.policy": "compact,delete"}, "set cleanup.policy to delete"),
        ("moves.hr.retry.1s", {"retention.ms": "86400000"}, "set retention.ms to 608760000"),
        ("moves", {"retention.ms": "60000"}, "set retention.ms to 604800000"),
        ("moves", {"retention.bytes": "1000000"}, "set retention.bytes to -1"),
    ],
)
def test_settings_that_lose_commands_are_found(app: App, topic: str, settings: dict[str, str], change: str) -> None:
    [found] = differences(app, all_right(app) | {topic: Found(partitions=4, settings=settings)})
    assert (found.topic, found.kind, found.change) == (topic, "setting", change)
    assert found.stops_workers


@pytest.mark.parametrize(
    "settings", [{"retention.ms": "-1"}, {"retention.ms": "604800000", "cleanup.policy": "delete"}]
)
def test_settings_that_keep_commands_are_left(app: App, settings: dict[str, str]) -> None:
    found = {name: Found(partitions=4, settings=settings) for name in all_right(app)}
    assert differences(app, found) == ()


def test_a_tier_that_no_policy_names_is_still_read(app: App) -> None:
    others = ["moves.hr.retry.5m", "moves.hr.retry.soon", "moves.hrx.retry.5m", "asks.hr.retry.2s", "moves.hr.retry.1s"]
    assert leftover_tiers(app, others) == ("asks.hr.retry.2s", "moves.hr.retry.5m")
    [found] = differences(app, all_right(app) | {"moves.hr.retry.5m": Found(partitions=4)})
    assert (found.kind, found.stops_workers, found.change) == ("leftover", False, None)


def test_an_app_without_handlers_needs_nothing() -> None:
    assert desired(App("hr")) == ()
    assert leftover_tiers(App("hr"), ["x.hr.retry.1s"]) == ()
