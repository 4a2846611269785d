"""Promise: a run counts each item once, completes once, and publishes its follow-up once, after all of its items.

Two workers and four keepers carry a run whose start was pressed twice. Some of its items fail for good: the run completes
with errors, names them, and a retry repeats only those. The follow-up is not published again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import psycopg
import pytest

from onceward_consumer.app import App
from onceward_consumer.failures import Reject
from onceward_consumer.run_keeper import RunKeeper
from onceward_consumer.run_progress import RunProgress, failed_items, get
from onceward_consumer.run_retry import retry_failed
from onceward_consumer.runs import Runs
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

ITEMS = 300
BROKEN = {"c7", "c77", "c177"}
# Of a follow-up the lane is the schema's; here it shall be the test's.
_REROUTE = """
create function reroute() returns trigger language plpgsql as $$ begin
    new.topic := '{lane}';
    return new;
end $$;
create trigger reroute before insert on onceward.outbox for each row when (new.topic !~ 'counters') execute function reroute()
"""


@pytest.fixture
def broken() -> set[str]:
    """Counters whose commands fail for good, until mended."""
    return set(BROKEN)


@pytest.fixture
def group(services: Services, database: str, topic_prefix: str, broken: set[str]) -> Iterator[Group]:
    app = App(app_name("runs"))

    @app.handler(Increment, lane=f"{topic_prefix}counters", item_stage="applied")
    def apply(command: Increment, ctx: Any) -> None:
        if command.counter in broken:
            raise Reject("no_such_counter")
        ctx.connection.execute("insert into effects (counter) values (%s)", (command.counter,))

    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table effects (seq bigint generated always as identity, counter text)")
        connection.execute(_REROUTE.format(lane=f"{topic_prefix}counters"))
    group = group_of(app, services, database)
    with ExitStack() as stack:
        stack.enter_context(Forwarder(database, services.bootstrap))
        for _ in range(4):
            keeper = RunKeeper(database)
            keeper.start()
            stack.callback(keeper.stop)
        for _ in range(2):
            stack.enter_context(group.running())
        yield group


def press(group: Group) -> UUID:
    """What the user's endpoint does: the run and its commands in one transaction, the commands on the first press only."""
    report = Increment(counter="report", amount=1, note="")
    with psycopg.connect(group.dsn) as connection:
        runs = Runs(group.codec)
        run = runs.start(connection, "count", expected={"applied": ITEMS}, business_key="may", follow_up=report)
    if not run.duplicate:
        for n in range(ITEMS):
            group.publish([Increment(counter=f"c{n}", amount=1, note="")], run_id=run.id, item=f"c{n}")
    return run.id


def finished(group: Group, run_id: UUID) -> RunProgress:
    def look() -> RunProgress | None:
        with psycopg.connect(group.dsn) as connection:
            run = get(connection, run_id)
        return None if run.open else run

    found = eventually(look, "completed run")
    assert isinstance(found, RunProgress)
    return found


def effects(group: Group) -> list[str]:
    return [row[0] for row in group.query("select counter from effects order by seq")]


def test_runs_complete_once(group: Group, broken: set[str]) -> None:
    run_id = press(group)
    assert press(group) == run_id
    run = finished(group, run_id)
    assert (run.state, run.stages[0].done, run.failed) == ("completed_with_errors", ITEMS - len(BROKEN), len(BROKEN))
    eventually(lambda: "report" in effects(group), "follow-up")
    assert effects(group)[-1] == "report"
    assert sorted(effects(group)[:-1]) == sorted({f"c{n}" for n in range(ITEMS)} - BROKEN)

    with psycopg.connect(group.dsn, autocommit=True) as connection:
        reasons = {item.item: item.reason for item in failed_items(connection, run_id)}
        assert reasons == dict.fromkeys(BROKEN, "no_such_counter")
        broken.clear()
        done = retry_failed(connection, run_id, by="ann")
    assert (done.commands, done.left) == (len(BROKEN), [])

    run = finished(group, run_id)
    assert (run.state, run.stages[0].done, run.failed) == ("completed", ITEMS, 0)
    eventually(group.settled, "end of everything")
    assert sorted(effects(group)) == sorted([*(f"c{n}" for n in range(ITEMS)), "report"])
    assert set(effects(group)[-len(BROKEN) :]) == BROKEN
