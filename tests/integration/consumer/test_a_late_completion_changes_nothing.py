"""A call that ends after its command was taken over: what it found out is not told, published, counted or written anywhere."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from onceward_consumer import settle
from onceward_consumer.clocks import DatabaseClock
from onceward_consumer.connections import HandlerConnection
from onceward_consumer.deliveries import Delivery
from onceward_consumer.drivers import Driver
from onceward_consumer.handlers import Handler
from onceward_consumer.items import Engine, Item
from onceward_consumer.leases import FENCED, claim, complete, complete_plain
from onceward_consumer.outcomes import Busy, Dead, Discarded, Done, Failed, Outcome
from onceward_consumer.policy import fixed
from onceward_consumer.run_items import RunItem
from onceward_producer.rows import Draft
from onceward_schemas.ids import new_id
from tests.support.commands import Increment

TABLES = ("ledger", "attempts", "holds", "parked", "dead_letters", "outbox", "run_items")
FAILED = Failed("busy", "later", timedelta(seconds=1))
OUTCOMES: dict[str, Outcome] = {
    "done": Done(),
    "failed": FAILED,
    "dead": Dead("no_such_mailbox", "no"),
    "discarded": Discarded("left"),
    "handed back": Busy(timedelta(0)),
}
HANDLER = Handler(
    command=Increment, function=lambda c, x: None, lane="mail", is_async=True, mode="external", order="strict",
    retry=fixed("1s", attempts=3), item_stage="sent",
)  # fmt: skip


class Bench:
    """Two workers on one database, one command, and no broker."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.identity, self.run = new_id(), new_id()
        with psycopg.connect(dsn) as connection:
            connection.execute("insert into onceward.runs (id, kind) values (%s, 'tests')", (self.run,))

    def worker(self) -> Engine:
        engine = Engine(
            group="g", incarnation=uuid.uuid4(), worker="w", code_version=None, codec=None, clock=DatabaseClock(),  # type: ignore[arg-type]
            handlers={HANDLER.type: HANDLER}, reach=timedelta(days=30), lock_timeout=timedelta(seconds=1),
        )  # fmt: skip
        self.lease(engine, 60)
        return engine

    def lease(self, engine: Engine, seconds: float) -> None:
        with psycopg.connect(self.dsn) as connection:
            connection.execute(
                "insert into onceward.workers (incarnation, consumer_group, host, pid, lease_until)"
                " values (%s, 'g', 'h', 1, now() + make_interval(secs => %s))"
                " on conflict (incarnation) do update set lease_until = excluded.lease_until",
                (engine.incarnation, seconds),
            )

    def claimed(self, engine: Engine) -> Item:
        context = json.dumps({"item": "7"})
        found = {"id": str(self.identity), "type": HANDLER.type, "run_id": str(self.run), "context": context}
        delivery = Delivery(
            topic="mail", partition=0, offset=0, timestamp_ms=0, key=b"a", payload=b"x", lane="mail", assignment=None,
            headers=[(name, value.encode()) for name, value in found.items()], handlers=engine.handlers,
        )  # fmt: skip
        assert delivery.envelope is not None
        item = Item(
            delivery, self.identity, f"{self.identity.int:032x}", delivery.envelope, HANDLER, Increment(counter="a")
        )
        item.counted = ("7",)
        self.drive(engine, lambda: claim([item], engine))
        assert item.outcome is None, "it may run"
        return item

    def end(self, engine: Engine, item: Item, outcome: Outcome, *, plain: bool = False) -> None:
        item.outcome = outcome
        if isinstance(outcome, Done) and not plain:
            item.drafts = [Draft(settle.record(item, "follow.up", 1, None), None, 0.0, None)]
            item.run_items = [RunItem(self.run, "extra", "8", "done", None, None, "g", item.id)]
        self.drive(engine, lambda: (complete_plain if plain else complete)([item], engine))

    def drive(self, engine: Engine, script: Callable[[], Any]) -> None:
        with closing(HandlerConnection.connect(self.dsn, autocommit=True)) as connection:
            Driver(connection, engine).run(script())

    def everything(self) -> dict[str, list[Any]]:
        with psycopg.connect(self.dsn) as connection:
            return {
                table: connection.execute(f"select t::text from onceward.{table} t order by 1").fetchall()
                for table in TABLES
            }


@pytest.fixture
def bench(database: str) -> Bench:
    return Bench(database)


@contextmanager
def nothing_changes(bench: Bench) -> Iterator[None]:
    before = bench.everything()
    assert before["ledger"]
    yield
    after = bench.everything()
    assert {t: after[t] for t in TABLES if after[t] != before[t]} == {}


@pytest.mark.parametrize("second", [*OUTCOMES, "running"])
def test_a_call_ends_after_another_worker_took_its_command_over(bench: Bench, second: str) -> None:
    for first, outcome in OUTCOMES.items():
        bench.identity = new_id()
        one, other = bench.worker(), bench.worker()
        late = bench.claimed(one)
        bench.lease(one, -1)
        taken = bench.claimed(other)
        assert (taken.attempt, taken.crashed) == (2, True)
        if second != "running":
            bench.end(other, taken, OUTCOMES[second])
        with nothing_changes(bench):
            bench.end(one, late, outcome)
        if first != "handed back":
            assert late.outcome is FENCED
        if first == "done":
            with nothing_changes(bench):
                bench.end(one, late, outcome, plain=True)
        with psycopg.connect(bench.dsn) as connection:  # the next one's key is free
            connection.execute("delete from onceward.holds")


@pytest.mark.parametrize("first", ["done", "failed", "dead", "discarded"])
def test_a_call_ends_after_its_own_worker_took_its_command_over_again(bench: Bench, first: str) -> None:
    one = bench.worker()
    late = bench.claimed(one)
    bench.lease(one, -1)
    again = bench.claimed(one)
    bench.lease(one, 60)
    assert again.attempt == 2
    with nothing_changes(bench):
        bench.end(one, late, OUTCOMES[first])
    if first == "done":
        with nothing_changes(bench):
            bench.end(one, late, Done(), plain=True)
    bench.end(one, again, Done())
    assert len(bench.everything()["outbox"]) == 1, "the later call counts"


@pytest.mark.parametrize("first", list(OUTCOMES))
def test_a_call_ends_after_it_was_handed_back_and_begun_elsewhere_as_the_same_attempt(bench: Bench, first: str) -> None:
    one, other = bench.worker(), bench.worker()
    late = bench.claimed(one)
    bench.end(one, late, OUTCOMES["handed back"])
    taken = bench.claimed(other)
    assert (taken.attempt, taken.crashed) == (1, False)
    with nothing_changes(bench):
        bench.end(one, late, OUTCOMES[first])
    if first == "done":
        with nothing_changes(bench):
            bench.end(one, late, Done(), plain=True)
    bench.end(other, taken, Done())
    assert len(bench.everything()["outbox"]) == 1, "the other's call counts"
