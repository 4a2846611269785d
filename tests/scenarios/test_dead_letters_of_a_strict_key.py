"""With strict order a dead letter holds its key: what follows waits for the operator, and then runs in order.

Replayed, the dead letter goes first and its followers after it; discarded, the followers go on without it. Other keys
never wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onceward_consumer.app import App
from onceward_consumer.dead_letter_decisions import discard, replay
from onceward_consumer.dead_letters import Filter, Identity, identities, waiting
from onceward_consumer.failures import Reject
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

FOLLOWERS = 20


@pytest.fixture
def broken() -> set[int]:
    """Amounts whose commands are rejected."""
    return {0}


@pytest.fixture
def group(services: Services, database: str, topic_prefix: str, broken: set[int]) -> Iterator[Group]:
    app = App(app_name("hr"))

    @app.handler(Increment, lane=f"{topic_prefix}counters", order="strict")
    def count(command: Increment, ctx: Any) -> None:
        if command.amount in broken:
            raise Reject("no_contract")
        ctx.connection.execute(
            "insert into effects (counter, amount) values (%s, %s)", (command.counter, command.amount)
        )

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            "create table effects (seq bigint generated always as identity, counter text, amount bigint)"
        )
    found = group_of(app, services, database, partitions=2)
    with Forwarder(database, services.bootstrap), found.running():
        yield found


def held(group: Group) -> Identity:
    """Publish a head that is rejected and its followers, and wait until these are parked behind its dead letter."""
    group.publish(Increment(counter="ann", amount=n) for n in range(FOLLOWERS + 1))
    group.publish(Increment(counter="bob", amount=n) for n in range(1, 4))
    with psycopg.connect(group.dsn, autocommit=True) as connection:
        found: list[Identity] = eventually(lambda: identities(connection, Filter(group=group.app.name)), "dead letter")
        [letter] = found
        eventually(lambda: waiting(connection, letter) == FOLLOWERS, "parked followers")
    eventually(lambda: effects(group, "bob") == [1, 2, 3], "effect on the other key")
    assert effects(group, "ann") == []
    return letter


def effects(group: Group, key: str) -> list[int]:
    return [amount for (amount,) in group.query("select amount from effects where counter = %s order by seq", key)]


def test_a_replayed_head_goes_first(group: Group, broken: set[int]) -> None:
    letter = held(group)
    broken.clear()
    group.publish([Increment(counter="ann", amount=FOLLOWERS + 1)])
    with psycopg.connect(group.dsn, autocommit=True) as connection:
        assert replay(connection, [letter], by="ann").done == (letter,)
    eventually(lambda: group.settled() and len(effects(group, "ann")) > FOLLOWERS, "settled key")
    eventually(lambda: len(effects(group, "ann")) == FOLLOWERS + 2, "effect of all")
    assert effects(group, "ann") == list(range(FOLLOWERS + 2))


def test_a_head_that_is_replayed_too_early_holds_its_key_again(group: Group, broken: set[int]) -> None:
    letter = held(group)
    with psycopg.connect(group.dsn, autocommit=True) as connection:
        replay(connection, [letter], by="ann")
        eventually(lambda: identities(connection, Filter(group=group.app.name)) == [letter], "open letter")
        eventually(lambda: waiting(connection, letter) == FOLLOWERS, "parked followers")
    assert effects(group, "ann") == []


def test_a_discarded_head_lets_its_followers_go(group: Group) -> None:
    letter = held(group)
    with psycopg.connect(group.dsn, autocommit=True) as connection:
        assert discard(connection, [letter], by="ann", because="left the company").done == (letter,)
    eventually(lambda: len(effects(group, "ann")) == FOLLOWERS and group.settled(), "settled key")
    assert effects(group, "ann") == list(range(1, FOLLOWERS + 1))
    assert group.states() == {"done": FOLLOWERS + 3, "discarded": 1}
