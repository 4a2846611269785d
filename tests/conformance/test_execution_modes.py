"""What a command may count on in every way to run its handler: thread or task, alone, grouped, in batches, outside, in a process.

All commands of a mode are published at once, to one worker; each test looks at keys of its own. What becomes of a worker's death
and of a drain is found out with others.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from onceward_consumer import dead_letter_decisions, dead_letters
from onceward_consumer.runs import Runs
from onceward_producer.rows import INSERT_MANY, arrays, row
from tests.support.consumers import Forwarder, Group, eventually, group_of
from tests.support.databases import fresh_database
from tests.support.execution_modes import (
    DSN,
    MODES,
    TABLES,
    InOrder,
    Loosely,
    Mode,
    Strictly,
    application,
    worker,
)
from tests.support.report_command import JsonEncoder
from tests.support.services import ROOT, Services
from tests.support.topics import delete_topics

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Stage:
    """A database and topics for the whole file."""

    services: Services
    dsn: str
    prefix: str

    def lanes(self, name: str) -> str:
        """What the lanes of a part of this file begin with."""
        return f"{self.prefix}{name}."

    def group(self, mode: Mode, name: str) -> Group:
        app = application(f"{self.prefix}{name}.{mode.name}", self.lanes(name), mode)
        return group_of(app, self.services, self.dsn, partitions=2, drain_timeout=timedelta(seconds=8))


@dataclass(frozen=True)
class Play:
    """One mode's group, whose commands have been published."""

    mode: Mode
    group: Group
    run_id: UUID

    def key(self, name: str) -> str:
        return f"{self.mode.name} {name}"

    def effects(self, name: str) -> list[int]:
        """The numbers of the commands of a key that took effect, in order."""
        return [row[0] for row in self.rows("select number from effect where key = %s order by seq", self.key(name))]

    def states(self, name: str) -> list[str]:
        """What the ledger says of the commands of a key, in order of publishing."""
        return [state for state, *_ in self.ledger(name)]

    def ledger(self, name: str) -> list[tuple[str, str | None]]:
        """State and reason."""
        return self.rows(
            "select l.state, l.reason from onceward.ledger l join published using (command_id)"
            " where consumer_group = %s and key = %s order by published.seq",
            self.group.app.name, self.key(name),
        )  # fmt: skip

    def attempts(self, name: str) -> list[tuple[int, str, str]]:
        """Attempts that did not end well."""
        return self.rows(
            "select attempt, outcome, a.reason from onceward.attempts a join published using (command_id)"
            " where consumer_group = %s and key = %s order by published.seq, attempt",
            self.group.app.name, self.key(name),
        )  # fmt: skip

    def rows(self, statement: str, *parameters: Any) -> list[Any]:
        return self.group.query(statement, *parameters)

    def has(self, name: str, *numbers: int) -> None:
        """Wait until these took effect, in this order, and no others."""
        eventually(lambda: self.effects(name) == list(numbers), f"{self.key(name)}: {numbers}")


@pytest.fixture(scope="module")
def stage(services: Services, migrated_template: str) -> Iterator[Stage]:
    prefix = f"t{uuid.uuid4().hex[:8]}."
    with fresh_database(services.dsn, migrated_template) as dsn, psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(TABLES.replace("{prefix}", f"{prefix}play."))
        connection.execute(
            "create table published (command_id uuid, seq bigint generated always as identity, key text)"
        )
        os.environ[DSN] = dsn
        with Forwarder(dsn, services.bootstrap):
            yield Stage(services, dsn, prefix)
        del os.environ[DSN]
    delete_topics(services.bootstrap, prefix)


def publish(group: Group, mode: Mode, commands: list[Any], **options: Any) -> list[UUID]:
    """Publish, and note down under which key."""
    ids = group.publish(
        [replace(c, key=c.key and f"{mode.name} {c.key}") for c in commands], tenant=mode.name, **options
    )
    with psycopg.connect(group.dsn) as connection:
        for identity, command in zip(ids, commands, strict=True):
            key = f"{mode.name} {command.key or 'null'}"
            connection.execute("insert into published (command_id, key) values (%s, %s)", (identity, key))
    return ids


def several(kind: Any, key: str | None, *does: str) -> list[Any]:
    """Commands of one key, numbered from 0."""
    return [kind(key=key, number=number, does=each) for number, each in enumerate(does)]


@pytest.fixture(scope="module", params=MODES, ids=lambda mode: mode.name)
def play(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Play]:
    mode: Mode = request.param
    group = stage.group(mode, "play")
    with psycopg.connect(group.dsn) as connection:
        run_id = Runs(JsonEncoder()).start(connection, mode.name, expected={"done": 3}).id
    publish(group, mode, [InOrder(key=f"done {n % 4}", number=n) for n in range(40)])
    for kind, name in ((InOrder, "in order"), (Strictly, "strict"), (Loosely, "loose")):
        publish(group, mode, several(kind, f"{name}: retried", "", "retry twice", "", ""))
        publish(group, mode, several(kind, f"{name}: given up", "", "reject once", ""))
    publish(group, mode, several(InOrder, "error", "", "connection once", ""))
    publish(group, mode, several(InOrder, "bug", "", "bug", ""))
    publish(group, mode, several(InOrder, "discarded", "", "discard", ""))
    publish(group, mode, several(InOrder, "exhausted", "", "retry", ""))
    publish(group, mode, several(InOrder, "publishes", "publish and retry once"))
    publish(group, mode, several(InOrder, "late", ""), deadline=LONG_AGO)
    publish(group, mode, several(InOrder, None, "retry twice", "", "reject", ""))
    for item, does in (("a", ""), ("b", "reject"), ("c", "retry once"), ("c", "")):
        publish(group, mode, several(InOrder, f"item {item}", does), run_id=run_id, item=item)
    publish(group, mode, several(InOrder, "twice", "", ""))
    disguise(group, mode, "modes.Unheard", several(InOrder, "unheard", ""))
    publish(group, mode, several(InOrder, "unheard", "", ""))
    disguise(group, mode, "modes.Ignored", several(InOrder, "ignored", ""))
    publish(group, mode, several(InOrder, "ignored", "", ""))
    group.query(
        "insert into onceward.outbox (id, aggregatetype, aggregateid, type, payload, topic, tenant)"
        " select id, aggregatetype, aggregateid, type, payload, topic, tenant from onceward.outbox where aggregateid = %s",
        f"{mode.name} twice",
    )
    running = worker(group.app, group.settings, stage.lanes("play"), mode)
    running.start()
    yield Play(mode, group, run_id)
    running.stop()


def disguise(group: Group, mode: Mode, kind: str, commands: list[Any]) -> None:
    """Publish them as if they were of another type."""
    rows = []
    for command in commands:
        made = row(replace(command, key=f"{mode.name} {command.key}"), group.codec, tenant=mode.name)
        rows.append(made._replace(type=kind, topic=group.app.lanes[0]))
    with psycopg.connect(group.dsn) as connection:
        connection.execute(INSERT_MANY, arrays(rows))
        for made, command in zip(rows, commands, strict=True):
            key = f"{mode.name} {command.key}"
            connection.execute("insert into published (command_id, key) values (%s, %s)", (made.id, key))


def test_each_takes_effect_once_in_the_order_of_its_key(play: Play) -> None:
    for key in range(4):
        play.has(f"done {key}", *range(key, 40, 4))
        eventually(lambda key=key: play.states(f"done {key}") == ["done"] * 10, "ten done")  # type: ignore[misc]
        assert not play.attempts(f"done {key}")


@pytest.mark.parametrize("name", ["in order", "strict"])
def test_its_followers_wait_while_it_is_retried(play: Play, name: str) -> None:
    play.has(f"{name}: retried", 0, 1, 2, 3)
    assert play.attempts(f"{name}: retried") == [(1, "failed", "not_yet"), (2, "failed", "not_yet")]


def test_without_order_nobody_waits(play: Play) -> None:
    play.has("loose: retried", 0, 2, 3, 1)
    play.has("loose: given up", 0, 2)


def test_its_followers_go_on_once_it_is_given_up(play: Play) -> None:
    play.has("in order: given up", 0, 2)
    assert play.ledger("in order: given up") == [("done", None), ("dead", "not_like_this"), ("done", None)]


def test_in_strict_order_they_wait_for_the_operator(play: Play) -> None:
    eventually(lambda: play.states("strict: given up") == ["done", "dead", "parked"], "a key that waits")
    assert play.effects("strict: given up") == [0]
    with psycopg.connect(play.group.dsn) as connection:
        wanted = dead_letters.Filter(group=play.group.app.name, key=play.key("strict: given up"))
        found = dead_letters.identities(connection, wanted)
        dead_letter_decisions.replay(connection, found, by="tests", because="mended")
    play.has("strict: given up", 0, 1, 2)


def test_what_passes_is_tried_again(play: Play) -> None:
    play.has("error", 0, 1, 2)
    assert play.attempts("error") == [(1, "failed", "connection")]


def test_what_stays_is_a_dead_letter_at_once(play: Play) -> None:
    play.has("bug", 0, 2)
    assert play.attempts("bug") == [(1, "dead", "key_error")]


def test_what_is_discarded_has_no_effect_and_no_dead_letter(play: Play) -> None:
    play.has("discarded", 0, 2)
    assert play.ledger("discarded")[1] == ("discarded", "no_longer")


def test_attempts_are_exhausted(play: Play) -> None:
    play.has("exhausted", 0, 2)
    assert [attempt for attempt, *_ in play.attempts("exhausted")] == [1, 2, 3]
    assert play.ledger("exhausted")[1] == ("dead", "attempts_exhausted")


def test_a_deadline_that_has_passed_is_discarded(play: Play) -> None:
    eventually(lambda: play.ledger("late") == [("discarded", "deadline")], "a late command discarded")
    assert not play.effects("late")


def test_a_follow_up_leaves_once_with_the_attempt_that_succeeds(play: Play) -> None:
    play.has("publishes", 0)
    play.has("publishes-next", 2)
    [(command_id,)] = play.rows("select command_id from published where key = %s", play.key("publishes"))
    assert play.rows("select cause from effect where key = %s", play.key("publishes-next")) == [(command_id,)]


def test_items_of_a_run_are_counted(play: Play) -> None:
    statement = "select item, state, reason from onceward.run_items where run_id = %s and stage = 'done' order by item"
    counted = [("a", "done", None), ("b", "failed", "never"), ("c", "done", None)]
    eventually(lambda: play.rows(statement, play.run_id) == counted, "counted items")


def test_without_a_key_there_is_no_order(play: Play) -> None:
    eventually(lambda: play.states("null") == ["done", "done", "dead", "done"], "three effects")
    found = play.rows(
        "select number from effect e where key is null and exists (select from published p join onceward.ledger l"
        " using (command_id) where p.key = %s and l.consumer_group = %s) order by seq",
        play.key("null"), play.group.app.name,
    )  # fmt: skip
    assert len(found) >= 3
    assert not play.rows("select 1 from onceward.parked where consumer_group = %s and key is null", play.group.app.name)


def test_the_same_record_again_is_a_duplicate(play: Play) -> None:
    play.has("twice", 0, 1)
    assert play.states("twice") == ["done", "done"]


def test_a_type_that_nobody_handles_is_parked_and_its_key_waits(play: Play) -> None:
    eventually(lambda: play.states("unheard") == ["parked"] * 3, "a key that waits")
    statement = "select reason from onceward.parked where consumer_group = %s and key = %s order by seq"
    found = play.rows(statement, play.group.app.name, play.key("unheard"))
    assert found == [("unknown_type",), ("held",), ("held",)]
    assert not play.effects("unheard")


def test_a_type_that_is_left_to_others_is_skipped(play: Play) -> None:
    play.has("ignored", 0, 1)
    assert play.states("ignored") == ["done", "done"]


def test_nothing_is_left_over(play: Play) -> None:
    statement = (
        "select key, state from onceward.ledger l join published using (command_id) where consumer_group = %s"
        " and state in ('running', 'retrying') union all"
        " select key, state from onceward.holds where consumer_group = %s and key <> %s"
    )
    names = play.group.app.name, play.group.app.name, play.key("unheard")
    eventually(lambda: not play.rows(statement, *names), "end of everything")


@pytest.fixture(scope="module")
def fallen(stage: Stage) -> dict[str, Group]:
    """The groups of a process that was killed while a call was under way in each."""
    with ThreadPoolExecutor(4) as pool:
        groups = dict(
            zip([m.name for m in MODES], pool.map(lambda mode: stage.group(mode, "fall"), MODES), strict=True)
        )
    for mode in MODES:
        publish(groups[mode.name], mode, several(InOrder, "fall", "", "hang", ""))
    [first, *_] = groups.values()
    environment = os.environ | {
        "ONCEWARD_DATABASE_URL": stage.dsn,
        "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS": stage.services.bootstrap,
        "ONCEWARD_REGISTRY_URL": stage.services.registry_url,
    }
    command = [sys.executable, "-m", "tests.support.execution_modes", stage.lanes("fall")]
    process = subprocess.Popen([*command, *(group.app.name for group in groups.values())], cwd=ROOT, env=environment)
    try:
        hanging = "select count(distinct key) from called"
        eventually(lambda: first.count(hanging) == len(MODES) or process.poll() is not None, "hanging calls", 120)
        assert process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return groups


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_what_a_killed_worker_ran_is_taken_over(stage: Stage, fallen: dict[str, Group], mode: Mode) -> None:
    play = Play(mode, fallen[mode.name], uuid.uuid4())
    running = worker(play.group.app, play.group.settings, stage.lanes("fall"), mode, instance="one")
    running.start()
    try:
        play.has("fall", 0, 1, 2)
    finally:
        running.stop()
    attempts = play.rows("select attempt from effect where key = %s and number = 1", play.key("fall"))
    assert attempts == ([(2,)] if mode.external else [(1,)]), "an external call may have happened, and counts"
    assert ((1, "crashed", "worker_lost") in play.attempts("fall")) == mode.external


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_a_drain_costs_no_attempt(stage: Stage, fallen: dict[str, Group], mode: Mode) -> None:
    play = Play(mode, fallen[mode.name], uuid.uuid4())
    publish(play.group, mode, [InOrder(key=f"drain {n % 3}", number=n, does="slow") for n in range(24)])
    first = worker(play.group.app, play.group.settings, stage.lanes("fall"), mode, instance="one")
    first.start()
    eventually(lambda: play.effects("drain 0"), "the first effect")
    first.stop()
    second = worker(play.group.app, play.group.settings, stage.lanes("fall"), mode, instance="one")
    second.start()
    try:
        for key in range(3):
            play.has(f"drain {key}", *range(key, 24, 3))
            assert not play.attempts(f"drain {key}")
    finally:
        second.stop()
