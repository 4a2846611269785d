"""How fast one worker runs handlers, beside consumers written by hand on the same records."""

from __future__ import annotations

import psycopg

from benchmarks.charges import application
from benchmarks.figures import Figure
from benchmarks.measuring import Budget, Series, Values, Variant, Watch, child, rounds, watched
from benchmarks.places import Place
from onceward_consumer import topics
from onceward_runtime.settings import Settings

KEYS = 1000
EXTERNAL_KEYS = 100
BACKLOG = 300_000


def figures(place: Place, budget: Budget) -> list[Figure]:
    """Ordinary handlers, handlers without a result, no groups, batches, external handlers, and memory."""
    return [*throughput(place, budget), *outside(place, budget), *memory(place, budget)]


def throughput(place: Place, budget: Budget) -> list[Figure]:
    """Handlers with one insert each."""
    quick, slow = budget.count(40_000), budget.count(12_000)
    topic = loaded(place, quick, KEYS)
    found = rounds(
        {
            "reads its statement's result": worker(place, "result", topic, quick),
            "by hand: each4": by_hand(place, "each4", topic, quick),
            "needs no result": worker(place, "plain", topic, quick),
            "by hand: pipe": by_hand(place, "pipe", topic, quick),
            "a transaction each": worker(place, "plain", topic, slow, "--threads", "16", "--group-size", "1"),
            "by hand: threads16": by_hand(place, "threads16", topic, slow),
            "in batches": worker(place, "batch", topic, quick),
            "by hand: lanes4": by_hand(place, "lanes4", topic, quick),
        },
        budget,
    )
    found |= rounds(
        {
            "by hand: one": by_hand(place, "one", topic, slow // 2),
            "by hand: decode": by_hand(place, "decode", topic, quick),
        },
        budget,
        times=1,
    )

    def compared(title: str, ours: str, reference: str, target: float) -> Figure:
        return Figure(
            name=title,
            ours=found[ours].median("per_s"),
            unit="commands/s",
            reference=found[f"by hand: {reference}"].median("per_s"),
            by=reference,
            target=target,
            cpu=found[ours].median("cpu_us"),
            reference_cpu=found[f"by hand: {reference}"].median("cpu_us"),
            strangers=worst(found[ours], found[f"by hand: {reference}"]),
            spread=found[ours].spread("per_s"),
        )

    one, decode = found["by hand: one"], found["by hand: decode"]
    return [
        compared("ordinary handler that reads its statement's result", "reads its statement's result", "each4", 0.85),
        compared("handler that needs no result", "needs no result", "pipe", 0.85),
        compared("the same against `each4`", "needs no result", "each4", 0.85),
        compared("a transaction each (`--group-size 1 --threads 16`)", "a transaction each", "threads16", 0.9),
        compared("batch handler", "in batches", "lanes4", 0.85),
        Figure(
            name="for orientation: one transaction each, one thread; decoding alone",
            ours=None,
            unit="",
            reference=one.median("per_s"),
            by=f"one; decode {decode.median('per_s'):,.0f}",
            strangers=worst(one, decode),
        ),
    ]


def outside(place: Place, budget: Budget) -> list[Figure]:
    """Calls of 5 ms to elsewhere, claimed and completed in the ledger, 100 keys in order."""
    count = budget.count(20_000)
    topic = loaded(place, count, EXTERNAL_KEYS)

    def bare(watch: Watch) -> Values:
        with watched(watch):
            return dict(
                child("benchmarks.references.tasks", str(count * 2), str(EXTERNAL_KEYS), "0.005", environment={})
            )

    found = rounds(
        {"external handler": worker(place, "external", topic, count, effects=False), "by hand: bare tasks": bare},
        budget,
    )
    ours, reference = found["external handler"], found["by hand: bare tasks"]
    return [
        Figure(
            name="external async handler, 5 ms of I/O, 100 keys, claimed in the ledger",
            ours=ours.median("per_s"),
            unit="commands/s",
            reference=reference.median("per_s"),
            by="bare asyncio tasks",
            target=0.5,
            cpu=ours.median("cpu_us"),
            strangers=worst(ours, reference),
            spread=ours.spread("per_s"),
        )
    ]


def memory(place: Place, budget: Budget) -> list[Figure]:
    """What a worker keeps when far more waits than it can hold."""
    count = budget.count(BACKLOG)
    topic = loaded(place, count, KEYS)
    found = rounds(
        {"backlog": worker(place, "plain", topic, count, "--seconds", str(budget.seconds(8)), complete=False)},
        budget,
        times=1,
    )["backlog"]
    return [
        Figure(
            name=f"worker's memory with a backlog of {count:,}",
            ours=found.median("mb"),
            unit="MB",
            target=250,
            of="ours",
            most=True,
            strangers=found.strangers,
        )
    ]


def worst(*series: Series) -> float:
    """The largest part that strangers had."""
    return max(one.strangers for one in series)


def loaded(place: Place, count: int, keys: int) -> str:
    """A topic with as many records."""
    topic = place.make_topic(place.unique())
    child("benchmarks.charges", topic, str(count), str(keys), environment=place.environment())
    return topic


def worker(
    place: Place, handler: str, topic: str, count: int, *options: str, effects: bool = True, complete: bool = True
) -> Variant:
    """One worker process of ours in a fresh database and a fresh group."""

    def sample(watch: Watch) -> Values:
        group = place.unique()
        prepare(place, handler, group, topic)
        with place.database() as dsn:
            with watched(watch):
                arguments = ("benchmarks.worker_process", handler, group, topic, str(count), *options)
                values = dict(child(*arguments, environment=place.environment(dsn)))
            if complete:
                check(dsn, "onceward.ledger where state = 'done'", count)
                check(dsn, "effect", count if effects else 0)
        return values

    return sample


def by_hand(place: Place, variant: str, topic: str, count: int) -> Variant:
    """One reference in a fresh database."""

    def sample(watch: Watch) -> Values:
        with place.database() as dsn:
            with watched(watch):
                arguments = ("benchmarks.references.consumer", variant, topic, str(count))
                values = dict(child(*arguments, environment=place.environment(dsn)))
            if variant != "decode":
                check(dsn, "by_hand_ledger", count)
                check(dsn, "effect", count)
        return values

    return sample


def prepare(place: Place, handler: str, group: str, topic: str) -> None:
    """The retry tiers and the dead-letter topic of a group."""
    found = Settings(kafka_bootstrap_servers=place.bootstrap)
    topics.apply(application(handler, group, topic), found, replication=1)


def check(dsn: str, what: str, least: int) -> None:
    """A benchmark that loses something has measured nothing."""
    with psycopg.connect(dsn) as connection:
        row = connection.execute(f"select count(*) from {what}").fetchone()
    if row is None or row[0] < least:
        raise RuntimeError(f"{what}: {row and row[0]} rows instead of {least}.")
