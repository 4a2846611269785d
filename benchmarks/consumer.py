"""How fast a worker runs an ordinary handler, beside the hand-written references of COMPARE.md, in one run.

    ONCEWARD_BENCH_COMPARE=/path/to/compare python benchmarks/consumer.py [--count 40000] [--rounds 3]

The services are those of the ONCEWARD_* settings; a database and topics of its own are made and dropped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from psycopg import conninfo

from onceward_consumer import topics
from onceward_consumer.app import App
from onceward_consumer.worker import Worker, WorkerOptions
from onceward_producer.rows import row
from onceward_runtime import migrate, settings
from onceward_schemas import headers
from onceward_schemas.avsc import command_schema
from onceward_schemas.codec import Codec
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.registry import RegistryClient

KEYS = 1000
PARTITIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeInvoice(Command):
    """About 300 bytes with its headers."""

    account: str
    job: int
    at: int
    amount: float
    currency: str
    note: str
    tags: tuple[str, ...] = ()

    SCHEMA: ClassVar[CommandSchema] = command_schema(r"""
{
  "type": "record",
  "name": "ChargeInvoice",
  "namespace": "bench",
  "onceward": {"version": 1, "lane": "bench.charges", "key": "account", "aggregate": "account"},
  "fields": [
    {"name": "account", "type": "string"},
    {"name": "job", "type": "int"},
    {"name": "at", "type": "long"},
    {"name": "amount", "type": "double"},
    {"name": "currency", "type": "string"},
    {"name": "note", "type": "string"},
    {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []}
  ]
}
""")


def application(name: str) -> App:
    """The group with the handler that is measured."""
    app = App(name)
    effect = "insert into effect values (%s, %s)"
    kind = os.environ.get("ONCEWARD_BENCH_HANDLER", "plain")

    if kind == "async":

        @app.handler(ChargeInvoice, lane=f"{name}.charges")
        async def charge_async(command: ChargeInvoice, ctx: Any) -> None:
            await ctx.connection.execute(effect, (command.job, int(command.account)))

    elif kind == "external":

        @app.handler(ChargeInvoice, lane=f"{name}.charges", mode="external", concurrency=100)
        async def charge_outside(command: ChargeInvoice, ctx: Any) -> None:
            await asyncio.sleep(0.005)

    elif kind == "result":

        @app.handler(ChargeInvoice, lane=f"{name}.charges")
        def charge_result(command: ChargeInvoice, ctx: Any) -> None:
            if ctx.connection.execute(effect, (command.job, int(command.account))).rowcount != 1:
                raise ValueError("nothing inserted")

    else:

        @app.handler(ChargeInvoice, lane=f"{name}.charges")
        def charge(command: ChargeInvoice, ctx: Any) -> None:
            ctx.connection.execute(effect, (command.job, int(command.account)))

    return app


def load(app: App, codec: Codec, bootstrap: str, count: int, keys: int) -> None:
    """Put the records on Kafka as the relay would."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for job in range(count):
        key = job * 7919 % keys
        command = ChargeInvoice(
            account=str(key), job=job, at=job, amount=12.5, currency="EUR", note="n" * 130, tags=("monthly", "auto")
        )
        found = row(command, codec, tenant="acme-42")
        pairs = [(n, None if (v := getattr(found, n)) is None else str(v).encode()) for n in headers.ALL]
        producer.produce(f"{app.name}.charges", found.payload, key=str(key).encode(), headers=pairs)
        if job % 5000 == 0:
            producer.poll(0)
    producer.flush()


def measure(name: str, count: int, threads: int, group_size: int) -> None:
    """In a process of its own: run a worker until everything is done, and print the figures."""
    app = application(name)
    worker = Worker(app, settings.load(), WorkerOptions(threads=threads, group_size=group_size))
    worker.start()
    buffer = worker._buffer
    while not buffer.records and not buffer.finished:
        time.sleep(0.001)
    started, cpu = time.perf_counter(), _cpu()
    profile = os.environ.get("ONCEWARD_BENCH_STACKS")
    stacks: dict[str, int] = {}
    while buffer.finished < count:
        time.sleep(0.005)
        if profile:
            _sample(stacks)
    seconds, used = time.perf_counter() - started, _cpu() - cpu
    worker.stop()
    for place, times in sorted(stacks.items(), key=lambda pair: -pair[1])[:40]:
        print(times, place, file=sys.stderr)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(
        json.dumps({"jobs_s": round(count / seconds), "cpu_us": round(used / count * 1e6, 1), "mb": peak}), flush=True
    )


def _sample(stacks: dict[str, int]) -> None:
    for identity, frame in sys._current_frames().items():
        if identity != __import__("threading").get_ident():
            place = f"{frame.f_code.co_filename.rsplit('/', 1)[-1]}:{frame.f_lineno} {frame.f_code.co_name}"
            stacks[place] = stacks.get(place, 0) + 1


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def place(count: int, keys: int = KEYS, effects: bool = True) -> Iterator[tuple[str, dict[str, str]]]:
    """A migrated database, and a lane with the records on it."""
    found = settings.load()
    name = f"bench_{uuid.uuid4().hex[:8]}"
    dsn = conninfo.make_conninfo(found.dsn, dbname=name)
    with psycopg.connect(found.dsn, autocommit=True) as connection:
        connection.execute(f"create database {name}")  # type: ignore[call-overload]
    try:
        migrate.apply(dsn)
        with psycopg.connect(dsn) as connection:
            connection.execute("create table effect (job int not null, account int not null)")
        app = application(name)
        registry = RegistryClient(found.registry_url)
        registry.register(ChargeInvoice.SCHEMA.name, ChargeInvoice.SCHEMA.avro)
        topics.apply(app, found, partitions=PARTITIONS, replication=1)
        load(app, Codec(registry, commands=[ChargeInvoice]), found.kafka_bootstrap_servers, count, keys)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("checkpoint")
        yield name, {"ONCEWARD_DATABASE_URL": dsn, "ONCEWARD_LOG_LEVEL": "warning"}
        with psycopg.connect(dsn) as connection:
            done = connection.execute(
                "select (select count(*) from onceward.ledger where state = 'done'), (select count(*) from effect)"
            ).fetchone()
            assert done == (count, count if effects else 0), done
    finally:
        admin = AdminClient({"bootstrap.servers": found.kafka_bootstrap_servers, "log_level": 0})
        ours = [topic for topic in admin.list_topics(timeout=10).topics if topic.startswith(f"{name}.")]
        if ours:
            for future in admin.delete_topics(ours).values():
                future.result()
        with psycopg.connect(found.dsn, autocommit=True) as connection:
            connection.execute(f"drop database {name} with (force)")  # type: ignore[call-overload]


def ours(count: int, handler: str, threads: int, group_size: int) -> dict[str, Any]:
    """One measurement of this project's worker."""
    outside = handler == "external"
    with place(count, 100 if outside else KEYS, not outside) as (name, environment):
        arguments = [
            "--measure",
            name,
            "--count",
            str(count),
            "--threads",
            str(threads),
            "--group-size",
            str(group_size),
        ]
        done = subprocess.run(
            [sys.executable, __file__, *arguments],
            env=os.environ | environment | {"ONCEWARD_BENCH_HANDLER": handler},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=300,
        )
    return json.loads(done.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]


def reference(kind: str, count: int, folder: Path) -> dict[str, Any]:
    """One measurement of a hand-written reference; its own program, its own tables.

    `ideal` is what the event loop allows with 100 keys and 5 ms each, without ledger or Kafka.
    """
    found = settings.load()
    environment = os.environ | {"PEERS_PG": found.dsn, "PEERS_KAFKA": found.kafka_bootstrap_servers}
    done = subprocess.run(
        [sys.executable, str(folder / "lanes.py"), kind, str(count)]
        if kind == "ideal"
        else [sys.executable, str(folder / "limit.py"), kind, "insert", str(count)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]


def main() -> None:
    """Print one line for each measurement, and the ratios of the medians."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=100)
    parser.add_argument("--handlers", default="plain,result")
    parser.add_argument("--references", default="each4,pipe")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        return measure(given.measure, given.count, given.threads, given.group_size)
    folder = os.environ.get("ONCEWARD_BENCH_COMPARE")
    kinds = [kind for kind in given.references.split(",") if kind and folder]
    if kinds and folder:
        found = settings.load()
        environment = os.environ | {"PEERS_PG": found.dsn, "PEERS_KAFKA": found.kafka_bootstrap_servers}
        subprocess.run([sys.executable, f"{folder}/limit.py", "load", str(given.count)], env=environment, check=True)
    figures: dict[str, list[float]] = {}
    for _ in range(given.rounds):
        for handler in given.handlers.split(","):
            result = ours(given.count, handler, given.threads, given.group_size)
            figures.setdefault(handler, []).append(result["jobs_s"])
            print(f"onceward {handler:8} {result}", flush=True)
        for kind in kinds:
            result = reference(kind, given.count, Path(str(folder)))
            figures.setdefault(kind, []).append(result["jobs_s"])
            print(f"reference {kind:7} {result}", flush=True)
    medians = {name: statistics.median(values) for name, values in figures.items()}
    for handler in given.handlers.split(","):
        for kind in kinds:
            print(f"{handler} / {kind} = {medians[handler] / medians[kind]:.2f}")


if __name__ == "__main__":
    main()
