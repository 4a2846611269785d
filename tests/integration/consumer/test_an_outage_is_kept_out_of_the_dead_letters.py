"""A deployment that breaks a handler costs a few dead letters; the others wait at no cost, and run in order once it is mended."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from onceward_consumer import guarded
from onceward_consumer.app import App
from onceward_consumer.failures import Reject
from onceward_consumer.guard import GUARDED, Ceiling
from onceward_consumer.policy import fixed, never
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

TABLE = "create table effect (seq bigint generated always as identity, counter text, amount int)"
INSERT = "insert into effect (counter, amount) values (%s, %s)"
COMMANDS, KEYS, CEILING = 120, 12, 5


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded, "_REST_SECONDS", 0.5)
    monkeypatch.setattr(guarded, "_IDLE_SECONDS", 0.5)


@pytest.mark.parametrize("mode", ["transactional", "external"])
@pytest.mark.parametrize("retry", [never, fixed("100ms", attempts=2)], ids=["at once", "exhausted"])
def test_what_an_outage_would_have_killed_waits_for_its_end(
    services: Services, database: str, topic_prefix: str, mode: Any, retry: Any
) -> None:
    app = App(app_name(topic_prefix), retry=retry, dead_letters=Ceiling(consecutive=CEILING))
    mended = threading.Event()
    applied: list[tuple[str, int]] = []

    @app.handler(Increment, lane=f"{topic_prefix}counter", mode=mode)
    def increment(command: Increment, ctx: Any) -> None:
        if not mended.is_set():
            raise LookupError("a column that is not there yet") if retry is never else TimeoutError
        if mode == "external":
            applied.append((command.counter, command.amount))
        else:
            ctx.connection.execute(INSERT, (command.counter, command.amount))

    group = group_of(app, services, database)
    group.query(TABLE)
    ids = group.publish(Increment(counter=f"c{n % KEYS}", amount=n) for n in range(COMMANDS))
    with Forwarder(database, services.bootstrap), group.running():
        # Each key has a head: dead, or held back. Nothing of it runs while its head waits.
        eventually(
            lambda: (
                group.count("select count(*) from onceward.parked where reason = %s", GUARDED) == KEYS
                and group.count("select count(*) from onceward.ledger") == COMMANDS
            ),
            "the guard",
        )
        dead = {ids.index(found) for (found,) in group.query("select command_id from onceward.dead_letters")}
        assert len(dead) == CEILING
        mended.set()
        eventually(
            lambda: group.states() == {"done": COMMANDS - CEILING, "dead": CEILING} and group.settled(), "the end"
        )
    effects = applied if mode == "external" else group.query("select counter, amount from effect order by seq")
    assert sorted(amount for _, amount in effects) == sorted(set(range(COMMANDS)) - dead)
    for key in range(KEYS):
        amounts = [amount for counter, amount in effects if counter == f"c{key}"]
        assert amounts == sorted(amounts)


def test_what_the_handler_rejects_itself_passes(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix), dead_letters=Ceiling(consecutive=CEILING))

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Any) -> None:
        raise Reject("unwanted")

    group = group_of(app, services, database)
    group.publish(Increment(counter=f"c{n % KEYS}", amount=n) for n in range(COMMANDS))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"dead": COMMANDS} and group.settled(), "the end")
