"""From the publisher's COMMIT to the handler, through the real relay and worker, and what failing commands cost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import LiteralString

import psycopg

from benchmarks.charges import ChargeInvoice, schema
from benchmarks.consuming import check, loaded, prepare, worst
from benchmarks.figures import Figure
from benchmarks.measuring import Budget, Values, Variant, Watch, rounds, watched
from benchmarks.places import Place
from benchmarks.processes import COMMAND_LINE, Measured, running, until
from benchmarks.relaying import make_slot, percentile_figures, percentiles, publisher, relay
from onceward_schemas.registry import RegistryClient

RATE = 100
PARKED = 100_000
FAILING_KEYS = 20_000
"""As many as `charges.fails` expects: no key has two failing commands, else the key's order alone would cost seconds."""


def latency(place: Place, budget: Budget) -> list[Figure]:
    """At 100 commands a second, otherwise idle."""
    seconds = budget.seconds(12)
    return percentile_figures(
        f"COMMIT → handler start at {RATE}/s",
        paced(place, seconds, by_hand=False),
        paced(place, seconds, by_hand=True),
        by="relay by hand, linger 0, then `one`",
        targets={"p50": 4.0, "p99": 10.0},
        budget=budget,
    )


def failures(place: Place, budget: Budget) -> list[Figure]:
    """Every tenth command fails twice and is retried after a second; its key's followers wait for it."""
    count = budget.count(200_000)
    topic = loaded(place, count, FAILING_KEYS)
    found = rounds(
        {
            "no failures": drained(place, "plain", topic, count),
            "10 % fail twice": drained(place, "failing", topic, count),
        },
        budget,
        times=1,
    )
    smooth, failing = found["no failures"], found["10 % fail twice"]
    return [
        Figure(
            name=f"throughput when 10 % of {count:,} fail twice (1 s delay), order kept",
            ours=failing.median("per_s"),
            unit="commands/s",
            reference=smooth.median("per_s"),
            by=f"ours without failures; work and delays alone allow {_allowed(count, smooth.median('per_s')):.2f}",
            target=0.75,
            strangers=worst(smooth, failing),
        )
    ]


def long_queue(place: Place, budget: Budget) -> list[Figure]:
    """Very many commands of one key behind one that fails: memory, order, and whether the last rounds are as quick."""
    count = budget.count(PARKED)
    topic = loaded(place, count, 1)
    found = rounds({f"{count:,} parked of one key": queued(place, topic, count)}, budget, times=1)
    [(name, series)] = found.items()
    first, last = series.median("first_per_s"), series.median("last_per_s")
    return [
        Figure(
            name=f"worker's memory with {name}",
            ours=series.median("mb"),
            unit="MB",
            target=250,
            of="ours",
            most=True,
            strangers=series.strangers,
        ),
        Figure(
            name=f"{name}: drained in order, the last fifth",
            ours=last,
            unit="commands/s",
            reference=first,
            by="the first fifth",
            target=0.8,
            strangers=series.strangers,
        ),
    ]


def queued(place: Place, topic: str, count: int) -> Variant:
    """All wait for the first; then how many effects a second there were at first and at last."""

    def sample(watch: Watch) -> Values:
        with place.database() as dsn:
            make_slot(place, dsn, by_hand=False)
            with relay(place, dsn, by_hand=False), psycopg.connect(dsn, autocommit=True) as connection:
                with worker(place, dsn, "queue", topic) as process:
                    parked = "select count(*) from onceward.parked"
                    until(lambda: _number(connection, parked) >= count - 1, 150, "the last parked command", pause=0.5)
                    connection.execute("insert into effect values (-1, 0)")
                    with watched(watch):
                        until(lambda: effects(connection) > count, 150, "the last effect", pause=0.5)
                    mb = process.peak_mb()
                connection.execute("delete from effect where job = -1")
                unordered = (
                    "select count(*) from (select job, row_number() over (order by at, job) - 1 as turn from effect)"
                )
                if _number(connection, f"{unordered} where job <> turn"):
                    raise RuntimeError("The commands of one key did not run in order.")
                rows = connection.execute(
                    "select extract(epoch from max(at) - min(at))::float8 from effect group by job < %s, job >= %s"
                    " having min(job) = 0 or max(job) = %s order by min(job)",
                    (count // 5, count - count // 5, count - 1),
                ).fetchall()
        first, last = (count / 5 / float(str(row[0])) for row in rows)
        return {"mb": mb, "first_per_s": first, "last_per_s": last}

    return sample


def _number(connection: psycopg.Connection[tuple[object, ...]], statement: LiteralString) -> int:
    row = connection.execute(statement).fetchone()
    return int(str(row[0])) if row else 0


def _allowed(count: int, per_s: float) -> float:
    """The ratio if the 20 % more executions cost what others do, and the last one waits twice for a second."""
    seconds = count / per_s
    return seconds / (1.2 * seconds + 2)


@contextlib.contextmanager
def worker(place: Place, dsn: str, handler: str, topic: str) -> Iterator[Measured]:
    """`onceward worker` with one of the handlers of `charges`."""
    group = place.unique()
    prepare(place, handler, group, topic)
    RegistryClient(place.registry).register(ChargeInvoice.SCHEMA.name, schema(topic).avro)
    bench = {"ONCEWARD_BENCH_HANDLER": handler, "ONCEWARD_BENCH_GROUP": group, "ONCEWARD_BENCH_LANE": topic}
    with running(
        COMMAND_LINE, "worker", "benchmarks.charges:app", environment=place.environment(dsn) | bench
    ) as process:
        yield process


def paced(place: Place, seconds: float, *, by_hand: bool) -> Variant:
    """Publish at a steady rate; the handler writes down when it was called."""

    def sample(watch: Watch) -> Values:
        topic, count = place.make_topic(place.unique()), int(RATE * seconds)
        with place.database() as dsn, contextlib.ExitStack() as stack:
            make_slot(place, dsn, by_hand=by_hand)
            stack.enter_context(relay(place, dsn, by_hand=by_hand, linger="0"))
            if by_hand:
                arguments = ("timed", topic, str(count + 1))
                environment = place.environment(dsn)
                stack.enter_context(running("benchmarks.references.consumer", *arguments, environment=environment))
            else:
                stack.enter_context(worker(place, dsn, "timed", topic))
            with psycopg.connect(dsn, autocommit=True) as connection:
                _warm_up(place, connection, dsn, topic)
                with watched(watch), publisher(place, dsn, topic, RATE, seconds) as process:
                    output, _ = process.communicate(timeout=seconds + 60)
                until(lambda: effects(connection) >= count, 30, "the last command's effect")
                rows = connection.execute("select job, extract(epoch from at)::float8 from effect").fetchall()
        return percentiles(json.loads(output), {int(job): float(at) for job, at in rows})

    return sample


def _warm_up(place: Place, connection: psycopg.Connection[tuple[object, ...]], dsn: str, topic: str) -> None:
    """One command, so that everybody has joined and connected."""
    with publisher(place, dsn, topic, 1, 1) as process:
        process.communicate(timeout=60)
    until(lambda: effects(connection) == 1, 60, "the first command's effect", pause=0.05)
    connection.execute("truncate effect")


def effects(connection: psycopg.Connection[tuple[object, ...]]) -> int:
    """How many handlers have succeeded."""
    row = connection.execute("select count(*) from effect").fetchone()
    return int(str(row[0])) if row else 0


def drained(place: Place, handler: str, topic: str, count: int) -> Variant:
    """A worker, and a relay for the retries: effects a second from the first to the last."""

    def sample(watch: Watch) -> Values:
        with place.database() as dsn:
            make_slot(place, dsn, by_hand=False)
            with relay(place, dsn, by_hand=False), psycopg.connect(dsn, autocommit=True) as connection:
                with worker(place, dsn, handler, topic):
                    until(lambda: effects(connection) > 0, 60, "the first effect", pause=0.05)
                    with watched(watch):
                        until(lambda: effects(connection) >= count, 150, "the last effect", pause=0.5)
                check(dsn, "onceward.ledger where state = 'done'", count)
                row = connection.execute("select extract(epoch from max(at) - min(at))::float8 from effect").fetchone()
        return {"per_s": count / float(str(row[0])) if row else 0.0}

    return sample
