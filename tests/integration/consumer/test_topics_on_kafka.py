"""`topics.apply` makes what an app needs, again and again and from several processes, and `check` tells what is wrong."""

from __future__ import annotations

import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from typer.testing import CliRunner

from onceward_cli.topics import app as command_line
from onceward_consumer import topics
from onceward_consumer.app import App
from onceward_consumer.policy import fixed
from onceward_runtime.kafka import topics as partitions_of
from onceward_runtime.settings import Settings, load
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.errors import BrokerError
from tests.support.services import Services
from tests.support.topics import create_topics


class Move(Command):
    SCHEMA = CommandSchema(name="test.Move", version=1, lane="moves", key="who", aggregate="person", avro={})


def handle(command: Any, ctx: Any) -> None:
    """Does nothing."""


@pytest.fixture
def settings(services: Services) -> Settings:
    return load(kafka_bootstrap_servers=services.bootstrap)


@pytest.fixture
def app(topic_prefix: str) -> App:
    app = App("hr")
    app.handler(Move, lane=f"{topic_prefix}moves", retry=fixed("5s"))(handle)
    return app


def mine(settings: Settings, prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): n for name, n in partitions_of(settings).items() if name.startswith(prefix)}


def test_apply_makes_the_topics_and_then_has_nothing_to_do(app: App, settings: Settings, topic_prefix: str) -> None:
    assert {d.kind for d in topics.plan(app, settings)} == {"missing"}
    assert mine(settings, topic_prefix) == {}
    done = topics.apply(app, settings, partitions=3, replication=1)
    assert len(done) == 3
    assert mine(settings, topic_prefix) == {"moves": 3, "moves.hr.retry.5s": 3, "moves.hr.dlq": 3}
    assert topics.plan(app, settings) == ()
    assert topics.apply(app, settings) == ()
    assert topics.check(app, settings) == (f"{topic_prefix}moves", f"{topic_prefix}moves.hr.retry.5s")


def test_two_processes_may_apply_at_once(app: App, settings: Settings, topic_prefix: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(topics.apply, app, settings, 2) for _ in range(2)]:
            future.result()
    assert set(mine(settings, topic_prefix).values()) == {2}


def test_a_worker_is_told_of_all_that_is_wrong_and_how_to_mend_it(
    app: App, settings: Settings, services: Services, topic_prefix: str
) -> None:
    create_topics(services.bootstrap, {f"{topic_prefix}moves": 3, f"{topic_prefix}moves.hr.retry.5s": 2})
    with pytest.raises(BrokerError) as caught:
        topics.check(app, settings)
    assert f"{topic_prefix}moves.hr.retry.5s: has 2 partitions, its lane has 3" in caught.value.message
    assert f"{topic_prefix}moves.hr.dlq: does not exist" in caught.value.message
    assert caught.value.remedy == "Run `onceward topics apply` with this app."
    topics.apply(app, settings)
    assert topics.check(app, settings)


def test_a_lane_is_grown_only_when_told_to(app: App, settings: Settings, topic_prefix: str) -> None:
    topics.apply(app, settings, partitions=2)
    with pytest.raises(BrokerError, match="may overtake an unread old one") as caught:
        topics.apply(app, settings, partitions=4)
    assert "--allow-repartition" in (caught.value.remedy or "")
    assert set(mine(settings, topic_prefix).values()) == {2}
    topics.apply(app, settings, partitions=4, allow_repartition=True)
    assert mine(settings, topic_prefix) == {"moves": 4, "moves.hr.retry.5s": 4, "moves.hr.dlq": 2}


def test_a_lane_that_somebody_grew_takes_its_tiers_along(
    app: App, settings: Settings, services: Services, topic_prefix: str
) -> None:
    topics.apply(app, settings, partitions=2)
    admin = AdminClient({"bootstrap.servers": services.bootstrap})
    for future in admin.create_partitions([NewPartitions(f"{topic_prefix}moves", 3)], operation_timeout=10).values():
        future.result()
    assert [(d.topic, d.repartitions) for d in topics.apply(app, settings)] == [
        (f"{topic_prefix}moves.hr.retry.5s", False)
    ]


def test_a_tier_with_too_many_partitions_is_left_to_a_person(
    app: App, settings: Settings, services: Services, topic_prefix: str
) -> None:
    create_topics(services.bootstrap, {f"{topic_prefix}moves": 1, f"{topic_prefix}moves.hr.retry.5s": 2})
    with pytest.raises(BrokerError, match="needs a decision"):
        topics.apply(app, settings)
    assert set(mine(settings, topic_prefix)) == {"moves", "moves.hr.retry.5s"}


def test_a_setting_that_would_lose_commands_is_mended(
    app: App, settings: Settings, services: Services, topic_prefix: str
) -> None:
    admin = AdminClient({"bootstrap.servers": services.bootstrap})
    wrong = {"cleanup.policy": "compact", "retention.ms": "60000"}
    for future in admin.create_topics([NewTopic(f"{topic_prefix}moves", 1, 1, config=wrong)]).values():
        future.result()
    changes = {d.change for d in topics.plan(app, settings) if d.kind == "setting"}
    assert changes == {"set cleanup.policy to delete", "set retention.ms to 604800000"}
    topics.apply(app, settings)
    assert topics.plan(app, settings) == ()


def test_the_command_line_plans_checks_and_applies(
    services: Services, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"m{uuid.uuid4().hex[:8]}"
    (tmp_path / f"{module}.py").write_text(
        "from onceward_consumer.app import App\n"
        "from onceward_consumer.policy import never\n"
        "from tests.support.report_command import MakeReport\n"
        'app = App("hr")\n'
        f'@app.handler(MakeReport, lane="{topic_prefix}reports", retry=never)\n'
        "def handle(command, ctx): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONCEWARD_KAFKA_BOOTSTRAP_SERVERS", services.bootstrap)

    def run(*arguments: str) -> tuple[int, Any]:
        result = CliRunner().invoke(command_line, [*arguments, f"{module}:app", "--output", "json"])
        return result.exit_code, json.loads(result.stdout)

    code, rows = run("plan")
    assert code == 0
    assert [row["topic"].removeprefix(topic_prefix) for row in rows] == ["reports", "reports.hr.dlq"]
    assert run("plan", "--check")[0] == 1
    assert run("apply", "--partitions", "2")[0] == 0
    assert run("plan", "--check") == (0, [])
