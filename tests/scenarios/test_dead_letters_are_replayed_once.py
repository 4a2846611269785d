"""A replayed dead letter is applied once, for its group only, with a budget of attempts of its own.

The operator may replay before the cause is mended: then it is an open dead letter again. Once it went through, nothing
replays it any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onceward_consumer.app import App
from onceward_consumer.dead_letter_decisions import Decision, replay
from onceward_consumer.dead_letters import Filter, find, identities
from onceward_consumer.policy import fixed
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services


class GatewayError(Exception):
    """Nobody knows what it means."""


@pytest.fixture
def broken() -> set[str]:
    """Counters whose commands fail."""
    return {"c1", "c3"}


def app_that(name: str, lane: str, table: str, broken: set[str]) -> App:
    app = App(name)

    @app.handler(Increment, lane=lane, retry=fixed("50ms", attempts=2))
    def count(command: Increment, ctx: Any) -> None:
        if command.counter in broken:
            raise GatewayError(f"{command.counter} is broken")
        ctx.connection.execute(
            f"insert into {table} values (%s, %s, %s)", (command.counter, command.amount, command.note)
        )

    return app


@pytest.fixture
def group(services: Services, database: str, topic_prefix: str, broken: set[str]) -> Iterator[Group]:
    lane = f"{topic_prefix}counters"
    with psycopg.connect(database, autocommit=True) as connection:
        for table in ("effects", "audited"):
            connection.execute(f"create table {table} (counter text, amount bigint, note text)")
    ours = group_of(app_that(app_name("hr"), lane, "effects", broken), services, database, partitions=2)
    audit = group_of(app_that(app_name("audit"), lane, "audited", set()), services, database, partitions=2)
    with Forwarder(database, services.bootstrap), ours.running(), audit.running():
        yield ours


def open_letters(group: Group) -> list[tuple[str | None, int, str]]:
    with psycopg.connect(group.dsn, autocommit=True) as connection:
        return [(one.key, one.attempts, one.reason) for one in find(connection, Filter(group=group.app.name))]


def replay_all(group: Group, state: str = "open") -> Decision:
    with psycopg.connect(group.dsn, autocommit=True) as connection:
        return replay(connection, identities(connection, Filter(group=group.app.name, state=state)), by="ann")


def test_a_replay_is_applied_once_and_nobody_else_sees_it(group: Group, broken: set[str]) -> None:
    group.publish(Increment(counter=f"c{n}", amount=n, note=f"note {n}") for n in range(5))
    eventually(lambda: len(open_letters(group)) == 2, "two dead letters")
    assert sorted(open_letters(group)) == [("c1", 2, "attempts_exhausted"), ("c3", 2, "attempts_exhausted")]
    eventually(lambda: group.count("select count(*) from audited") == 5, "audit of all")

    # Replayed too early, they come back, with two more attempts each.
    replay_all(group)
    eventually(lambda: [(key, n) for key, n, _ in sorted(open_letters(group))] == [("c1", 4), ("c3", 4)], "new failure")
    assert group.query("select distinct state, decided_by from onceward.dead_letters") == [("open", "ann")]

    broken.clear()
    decision = replay_all(group)
    assert len(decision.done) == 2
    eventually(lambda: group.count("select count(*) from effects") == 5 and group.settled(), "effect of all")
    resolved = "select count(*) from onceward.dead_letters where state = 'resolved'"
    eventually(lambda: group.count(resolved) == 2, "resolved letters")
    assert group.query("select * from effects order by counter") == [(f"c{n}", n, f"note {n}") for n in range(5)]

    again = replay_all(group, state="resolved")
    assert again.done == ()
    assert {refusal.reason for refusal in again.refused} == {"is resolved: a replay of it went through (by ann)"}
    # What is published now comes after everything before it, in each partition.
    group.publish(Increment(counter=f"c{n}", amount=9) for n in range(5))
    eventually(lambda: group.count("select count(*) from audited") >= 10, "audit of the rest")
    assert group.count("select count(*) from audited") == 10
    eventually(lambda: group.count("select count(*) from effects") >= 10, "effect of the rest")
    assert group.count("select count(*) from effects") == 10
    history = "select attempt, outcome from onceward.attempts where command_id = %s order by attempt"
    for letter in decision.done:
        assert group.query(history, letter.command_id) == [(1, "failed"), (2, "dead"), (3, "failed"), (4, "dead")]
