"""From the publisher's COMMIT to the handler, through the real relay and worker, and what failing commands cost."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import psycopg

from benchmarks.charges import ChargeInvoice, schema
from benchmarks.consuming import check, loaded, prepare, worst
from benchmarks.figures import Figure
from benchmarks.measuring import Budget, Values, Variant, Watch, rounds, watched
from benchmarks.places import Place
from benchmarks.processes import COMMAND_LINE, running, until
from benchmarks.relaying import make_slot, percentile_figures, percentiles, publisher, relay
from onceward_schemas.registry import RegistryClient

RATE = 100
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


def _allowed(count: int, per_s: float) -> float:
    """The ratio if the 20 % more executions cost what others do, and the last one waits twice for a second."""
    seconds = count / per_s
    return seconds / (1.2 * seconds + 2)


@contextlib.contextmanager
def worker(place: Place, dsn: str, handler: str, topic: str) -> Iterator[None]:
    """`onceward worker` with one of the handlers of `charges`."""
    group = place.unique()
    prepare(place, handler, group, topic)
    RegistryClient(place.registry).register(ChargeInvoice.SCHEMA.name, schema(topic).avro)
    bench = {"ONCEWARD_BENCH_HANDLER": handler, "ONCEWARD_BENCH_GROUP": group, "ONCEWARD_BENCH_LANE": topic}
    with running(COMMAND_LINE, "worker", "benchmarks.charges:app", environment=place.environment(dsn) | bench):
        yield


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
