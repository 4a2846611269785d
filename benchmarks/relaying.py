"""How fast the relay works off a backlog, and how long a row takes through an idle one, beside a relay written by hand."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from os import environ

import psycopg
from confluent_kafka import Consumer, TopicPartition

from benchmarks.consuming import worst
from benchmarks.figures import Figure
from benchmarks.measuring import Budget, Series, Values, Variant, Watch, percentile, rounds, watched
from benchmarks.places import PARTITIONS, Place
from benchmarks.processes import COMMAND_LINE, Measured, running, until

REFERENCE = "benchmarks.references.relay"
RATE = 500
WARM_UP_SECONDS = 1.0
_BACKLOG = """
do $$
begin
    for batch in 1..{batches} loop
        insert into onceward.outbox (id, aggregatetype, aggregateid, type, payload, topic, tenant, traceparent, context)
        select gen_random_uuid(), 'account', (n * 7919 % 1000)::text, 'bench.ChargeInvoice', decode(repeat('5a', 190), 'hex'),
            '{topic}', 'acme-42', '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', '{{"item":"' || n || '"}}'
        from generate_series((batch - 1) * {rows} + 1, batch * {rows}) n;
        commit;
    end loop;
end $$
"""


def backlog(place: Place, budget: Budget) -> list[Figure]:
    """Rows per second, CPU and memory."""
    single, grouped = budget.count(100_000), budget.count(200_000)
    found = rounds(
        {
            "relay, 1 row/tx": drained(place, single, 1, by_hand=False),
            "by hand, 1 row/tx": drained(place, single, 1, by_hand=True),
            "relay, 100 rows/tx": drained(place, grouped, 100, by_hand=False),
            "by hand, 100 rows/tx": drained(place, grouped, 100, by_hand=True),
        },
        budget,
    )
    result = []
    for shape in ("1 row/tx", "100 rows/tx"):
        ours, reference = found[f"relay, {shape}"], found[f"by hand, {shape}"]
        speed = Figure(
            name=f"relay, backlog with {shape}",
            ours=ours.median("per_s"),
            unit="rows/s",
            reference=reference.median("per_s"),
            by="relay by hand, linger 5 ms",
            target=0.95,
            strangers=worst(ours, reference),
            spread=ours.spread("per_s"),
        )
        cpu = Figure(
            name=f"relay's CPU, {shape}",
            ours=ours.median("cpu_us"),
            unit="µs/row",
            reference=reference.median("cpu_us"),
            by="relay by hand",
            target=14,
            of="ours",
            most=True,
            strangers=worst(ours, reference),
        )
        result += [speed, cpu]
    shapes = ("1 row/tx", "100 rows/tx")
    ours, reference = (max((found[f"{who}, {shape}"] for shape in shapes), key=_memory) for who in ("relay", "by hand"))
    memory = Figure(
        name="relay's memory, the larger of the two",
        ours=ours.median("mb"),
        unit="MB",
        reference=reference.median("mb"),
        by="relay by hand",
        target=90,
        of="ours",
        most=True,
        strangers=ours.strangers,
    )
    return [*result, memory]


def _memory(series: Series) -> float:
    return series.median("mb")


def latency(place: Place, budget: Budget) -> list[Figure]:
    """From the call of commit() until a consumer has the record, at 500 rows a second."""
    seconds = budget.seconds(12)
    return percentile_figures(
        f"COMMIT → Kafka consumer at {RATE}/s",
        paced(place, seconds, by_hand=False),
        paced(place, seconds, by_hand=True),
        by="relay by hand, linger 0",
        targets={"p50": 1.5, "p99": 5.0},
        budget=budget,
    )


def percentile_figures(
    title: str, ours: Variant, by_hand: Variant, *, by: str, targets: dict[str, float], budget: Budget
) -> list[Figure]:
    """Ours and the reference in turns, twice at most; a figure for each percentile that has a target, in ms."""
    found = rounds({title: ours, by: by_hand}, budget, times=min(2, budget.rounds))
    return [
        Figure(
            name=f"{title}, {name}",
            ours=found[title].median(name),
            unit="ms",
            reference=found[by].median(name),
            by=by,
            target=target,
            of="ours",
            most=True,
            strangers=worst(found[title], found[by]),
        )
        for name, target in targets.items()
    ]


@contextmanager
def relay(place: Place, dsn: str, *, by_hand: bool, linger: str = "5") -> Iterator[Measured]:
    """A relay process on the slot that `slot_for` made."""
    name = slot_of(dsn)
    environment = place.environment(dsn) | {"ONCEWARD_SLOT": name, "ONCEWARD_PUBLICATION": name}
    if by_hand:
        with running(REFERENCE, name, name, linger, environment=environment) as process:
            yield process
    else:
        with running(COMMAND_LINE, "relay", "--mode", "stream", environment=environment) as process:
            yield process


def slot_of(dsn: str) -> str:
    """The slot's and the publication's name: those of the database."""
    return psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]  # type: ignore[return-value]


def make_slot(place: Place, dsn: str, *, by_hand: bool) -> None:
    """A slot from which the backlog that is written next will be read."""
    name = slot_of(dsn)
    with psycopg.connect(dsn, autocommit=True) as connection:
        if by_hand:
            publish = f"create publication {name} for table onceward.outbox with (publish = 'insert')"
            connection.execute(publish)
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
            return
        swept = "select 1 from pg_replication_slots s join onceward.relay_slots r on r.slot = s.slot_name where active"
        with relay(place, dsn, by_hand=False) as process:

            def ready() -> bool:
                process.check()
                return connection.execute(swept).fetchone() is not None

            until(ready, 30, "the relay has taken its slot")


class Heads:
    """How much a topic holds, as its partitions' ends say."""

    def __init__(self, place: Place, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": place.bootstrap, "group.id": topic})
        self._partitions = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]

    def count(self) -> int:
        return sum(self._consumer.get_watermark_offsets(one, timeout=10)[1] for one in self._partitions)

    def close(self) -> None:
        self._consumer.close()


def drained(place: Place, count: int, rows: int, *, by_hand: bool) -> Variant:
    """Write a backlog, then start the relay: rows a second from the first record on Kafka to the last."""

    def sample(watch: Watch) -> Values:
        topic = place.make_topic(place.unique())
        heads = Heads(place, topic)
        with place.database() as dsn:
            make_slot(place, dsn, by_hand=by_hand)
            with psycopg.connect(dsn, autocommit=True) as connection:
                connection.execute("set synchronous_commit = off")
                connection.execute(_BACKLOG.format(batches=count // rows, rows=rows, topic=topic))
                connection.execute("checkpoint")
            with relay(place, dsn, by_hand=by_hand) as process:
                until(lambda: heads.count() > 0, 60, "the relay's first record", pause=0.005)
                watch.begin()
                began, cpu, before = time.perf_counter(), process.cpu_seconds(), heads.count()
                until(lambda: heads.count() >= count, 120, "the relay's last record", pause=0.01)
                seconds = time.perf_counter() - began
                used, peak = process.cpu_seconds() - cpu, process.peak_mb()
                watch.end()
        heads.close()
        moved = max(1, count - before)
        return {"per_s": moved / seconds, "cpu_us": used / moved * 1e6, "mb": peak}

    return sample


def paced(place: Place, seconds: float, *, by_hand: bool) -> Variant:
    """Publish at a steady rate in another process, and see when each record comes."""

    def sample(watch: Watch) -> Values:
        topic = place.make_topic(place.unique())
        consumer = Consumer({"bootstrap.servers": place.bootstrap, "group.id": topic, "fetch.wait.max.ms": 500})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        came: dict[int, float] = {}
        with place.database() as dsn:
            make_slot(place, dsn, by_hand=by_hand)
            with relay(place, dsn, by_hand=by_hand, linger="0"):
                consumer.poll(1.0)
                with watched(watch), publisher(place, dsn, topic, RATE, seconds) as process:
                    wanted, until_ = int(RATE * seconds), time.monotonic() + seconds + 30
                    while len(came) < wanted and time.monotonic() < until_:
                        message = consumer.poll(0.5)
                        if message is not None and message.error() is None:
                            came[int(message.key())] = time.time()  # type: ignore[arg-type]
                    output, _ = process.communicate(timeout=30)
        consumer.close()
        return percentiles(json.loads(output), came)

    return sample


def percentiles(committed: list[float], came: dict[int, float]) -> Values:
    """Milliseconds, the first second left out. Raises: RuntimeError when one is missing."""
    missing = len(committed) - len(came)
    if missing:
        raise RuntimeError(f"{missing} of {len(committed)} never came.")
    began = committed[0] + WARM_UP_SECONDS
    waits = [(came[job] - at) * 1000 for job, at in enumerate(committed) if at >= began]
    found = functools.partial(percentile, waits)
    return {"p50": found(0.5), "p99": found(0.99)}


@contextmanager
def publisher(place: Place, dsn: str, lane: str, rate: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A process that publishes at a steady rate."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.pace", str(rate), str(seconds)],
        env=environ | place.environment(dsn) | {"ONCEWARD_BENCH_LANE": lane},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
