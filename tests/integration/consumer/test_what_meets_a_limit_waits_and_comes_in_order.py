"""What is paused or throttled waits in memory, then in PostgreSQL; it costs no attempt, holds nobody up, and comes in order."""

from __future__ import annotations

import itertools
import threading
import time
from collections import defaultdict
from typing import Any

import psycopg
import pytest

from onceward_consumer import controls, executors, release
from onceward_consumer.app import App
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

EFFECT = """
create table effect (
    seq bigint generated always as identity, counter text, amount int, attempt int, at timestamptz default clock_timestamp()
)
"""


def build(services: Services, dsn: str, prefix: str, *, fails: bool = False, **limit: Any) -> Group:
    app = App(app_name(prefix), retry=fixed("300ms", attempts=3))
    if limit:
        app.limit("type:test.Increment", **limit)

    @app.handler(Increment, lane=f"{prefix}lane")
    def increment(command: Increment, ctx: Any) -> None:
        ctx.connection.execute(
            "insert into effect (counter, amount, attempt) values (%s, %s, %s)",
            (command.counter, command.amount, ctx.attempt),
        )
        if fails and command.amount == 1 and ctx.attempt == 1:
            raise Retry("not yet")

    @app.handler(Settle, lane=f"{prefix}lane")
    def settle(command: Settle, ctx: Any) -> None:
        ctx.connection.execute(
            "insert into effect (counter, amount, attempt) values ('settle', %s, 1)", (command.batch,)
        )

    group = group_of(app, services, dsn)
    group.query(EFFECT)
    return group


def in_order(group: Group, keys: int, each: int) -> None:
    for n in range(keys):
        found = group.query("select amount from effect where counter = %s order by seq", f"c{n}")
        assert [row[0] for row in found] == list(range(each))


def test_what_is_paused_is_parked_and_comes_in_order(services: Services, database: str, topic_prefix: str) -> None:
    group = build(services, database, topic_prefix)
    with psycopg.connect(database, autocommit=True) as connection:
        controls.pause(connection, group.app.name, "type:test.Increment", by="ann", because="maintenance")
        with Forwarder(database, services.bootstrap), group.running(buffered_records=60):
            group.publish(Increment(counter=f"c{n}", amount=m) for m in range(4) for n in range(40))
            group.publish(Settle(batch=n) for n in range(30))
            eventually(lambda: group.count("select count(*) from effect where counter = 'settle'") == 30, "others")
            eventually(lambda: group.count("select count(*) from onceward.parked where reason = 'paused'"), "parked")
            assert group.count("select count(*) from effect where counter <> 'settle'") == 0
            controls.resume(connection, group.app.name, "type:test.Increment", by="ann", because="done")
            eventually(lambda: group.count("select count(*) from effect") == 190 and group.settled(), "all effects", 60)
    in_order(group, 40, 4)
    assert group.count("select count(*) from onceward.attempts") == 0
    assert group.query("select distinct attempt from effect") == [(1,)]


def test_a_rate_holds_for_parked_commands_and_retries_too(services: Services, database: str, topic_prefix: str) -> None:
    group = build(services, database, topic_prefix, fails=True, rate="40/s")
    keys, each = 30, 4
    with (
        Forwarder(database, services.bootstrap),
        group.running(buffered_records=40),
        group.running(buffered_records=40),
    ):
        group.publish(Increment(counter=f"c{n}", amount=m) for m in range(each) for n in range(keys))
        group.publish(Settle(batch=n) for n in range(20))
        eventually(lambda: group.count("select count(*) from onceward.parked where reason = 'throttled'"), "parked")
        eventually(
            lambda: group.count("select count(*) from effect") == keys * each + 20 and group.settled(), "all", 60
        )
    in_order(group, keys, each)
    rows = group.query("select at from effect where counter <> 'settle' order by at")
    began = [row[0].timestamp() for row in rows]
    rate = group.app.limits["type:test.Increment"].rate
    assert rate is not None
    for window in (1.0, 2.0):
        most = max(sum(1 for other in began if start <= other < start + window) for start in began)
        assert most <= rate.most_in(window + 0.2)
    calls = keys * each + keys  # each key's second command failed once
    assert began[-1] - began[0] > (calls - rate.most_in(0)) / rate.per_second - 2.0, "retries counted, too"


def test_a_slow_rate_lets_others_pass(services: Services, database: str, topic_prefix: str) -> None:
    group = build(services, database, topic_prefix, rate="1/m")
    with Forwarder(database, services.bootstrap), group.running():
        group.publish(Increment(counter=f"c{n}", amount=0) for n in range(20))
        started = time.monotonic()
        eventually(lambda: group.count("select count(*) from effect where counter <> 'settle'") == 1, "the first")
        group.publish(Settle(batch=n) for n in range(50))
        eventually(lambda: group.count("select count(*) from effect where counter = 'settle'") == 50, "others")
        assert time.monotonic() - started < 30
        assert group.count("select count(*) from effect where counter <> 'settle'") == 1


def test_followers_that_a_limit_refuses_are_looked_at_seldom(
    services: Services, database: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[float] = []
    ordinary = release.release_group

    def noted(*args: Any, **options: Any) -> Any:
        rounds.append(time.monotonic())
        return ordinary(*args, **options)

    monkeypatch.setattr(executors, "release_group", noted)
    app = App(app_name(topic_prefix), retry=fixed("300ms", attempts=3))
    paused, watched = threading.Event(), threading.Event()

    @app.handler(Increment, lane=f"{topic_prefix}lane")
    def increment(command: Increment, ctx: Any) -> None:
        if command.amount == 0 and ctx.attempt == 1:
            raise Retry("not yet")
        if command.amount == 0:
            watched.set()
            assert paused.wait(30)
        ctx.connection.execute(
            "insert into effect (counter, amount, attempt) values (%s, %s, 1)", (command.counter, command.amount)
        )

    group = group_of(app, services, database)
    group.query(EFFECT)
    with (
        psycopg.connect(database, autocommit=True) as connection,
        Forwarder(database, services.bootstrap),
        group.running() as worker,
    ):
        group.publish(Increment(counter="c0", amount=m) for m in range(30))
        assert watched.wait(30), "the head runs again"
        eventually(lambda: group.count("select count(*) from onceward.parked where reason = 'held'") == 29, "followers")
        controls.pause(connection, group.app.name, "type:test.Increment", by="ann", because="maintenance")
        eventually(lambda: worker._engine.limiter is not None and worker._engine.limiter.active, "the pause is known")
        paused.set()
        eventually(
            lambda: group.count("select count(*) from onceward.holds where state = 'draining'"), "the head's end"
        )
        before = len(rounds)
        time.sleep(2.0)  # not to wait for something: what is counted is what happens meanwhile
        assert len(rounds) - before < 40
        assert group.count("select count(*) from effect") == 1
        controls.resume(connection, group.app.name, "type:test.Increment", by="ann", because="done")
        eventually(lambda: group.count("select count(*) from effect") == 30 and group.settled(), "all effects")
    in_order(group, 1, 30)


@pytest.mark.parametrize("mode", ["transactional", "external"])
def test_no_two_run_at_once_where_one_may(services: Services, database: str, topic_prefix: str, mode: Any) -> None:
    """Groups, retries and followers alike; two workers with several runners each."""
    spans: list[tuple[float, float]] = []
    order: defaultdict[str, list[int]] = defaultdict(list)
    app = App(app_name(topic_prefix), retry=fixed("300ms", attempts=3))
    app.limit("type:test.Increment", concurrency=1)

    @app.handler(Increment, lane=f"{topic_prefix}lane", mode=mode)
    def increment(command: Increment, ctx: Any) -> None:
        began = time.monotonic()
        time.sleep(0.005)
        spans.append((began, time.monotonic()))
        if command.amount == 1 and ctx.attempt == 1:
            raise Retry("not yet")
        order[command.counter].append(command.amount)

    group = group_of(app, services, database)
    with Forwarder(database, services.bootstrap), group.running(), group.running():
        group.publish(Increment(counter=f"c{n}", amount=m) for m in range(5) for n in range(20))
        eventually(lambda: sum(map(len, order.values())) >= 100 and group.settled(), "all effects", 60)
    assert set(group.states()) == {"done"}
    if mode == "external":
        assert all(found == [0, 1, 2, 3, 4] for found in order.values())
    spans.sort()
    for (_, ended), (began, _) in itertools.pairwise(spans):
        assert began >= ended
