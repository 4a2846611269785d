"""The command of all figures, some 300 bytes with its headers, and the application whose handlers run it.

Environment: ONCEWARD_BENCH_GROUP (the app's name), ONCEWARD_BENCH_LANE, ONCEWARD_BENCH_HANDLER (see `handler`).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from confluent_kafka import Producer

from onceward_consumer.app import App
from onceward_consumer.policy import fixed
from onceward_producer.rows import row
from onceward_runtime import settings
from onceward_schemas import headers
from onceward_schemas.avsc import command_schema
from onceward_schemas.codec import Codec
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.registry import RegistryClient

GROUP = os.environ.get("ONCEWARD_BENCH_GROUP", "bench")
LANE = os.environ.get("ONCEWARD_BENCH_LANE", "bench.charges")
IO_SECONDS = 0.005
EFFECT = "insert into effect values (%s, %s)"
EFFECTS = "insert into effect select * from unnest(%b::int[], %b::int[])"


def schema(lane: str) -> CommandSchema:
    """The command's schema when it is published to this lane."""
    text = r"""
{
  "type": "record",
  "name": "ChargeInvoice",
  "namespace": "bench",
  "onceward": {"version": 1, "lane": "LANE", "key": "account", "aggregate": "account"},
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
"""
    return command_schema(text.replace("LANE", lane))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeInvoice(Command):
    """Some money from an account."""

    account: str
    job: int
    at: int
    amount: float
    currency: str
    note: str
    tags: tuple[str, ...] = ()

    SCHEMA: ClassVar[CommandSchema] = schema(LANE)


class GatewayDown(Exception):
    """What fails now and then."""


def fails(job: int, keys: int = 20_000) -> bool:
    """Every tenth command, and no key has two of them among its first five."""
    key, turn = job % keys, job // keys
    return key % 2 == 0 and turn % 5 == key // 2 % 5


def charge(job: int, keys: int) -> ChargeInvoice:
    """One command."""
    return ChargeInvoice(
        account=str(job * 7919 % keys),
        job=job,
        at=job,
        amount=12.5,
        currency="EUR",
        note="n" * 130,
        tags=("monthly", "auto"),
    )


def plain(command: ChargeInvoice, ctx: Any) -> None:
    """Needs no result of its statement."""
    ctx.connection.execute(EFFECT, (command.job, int(command.account)))


def result(command: ChargeInvoice, ctx: Any) -> None:
    """Looks at what its statement did."""
    if ctx.connection.execute(EFFECT, (command.job, int(command.account))).rowcount != 1:
        raise ValueError("nothing inserted")


def batch(commands: Sequence[ChargeInvoice], ctx: Any) -> None:
    """One statement for all."""
    ctx.connection.execute(EFFECTS, ([c.job for c in commands], [int(c.account) for c in commands]))


def failing(command: ChargeInvoice, ctx: Any) -> None:
    """As `plain`; every tenth command fails twice first."""
    if fails(command.job) and ctx.attempt <= 2:
        raise GatewayDown
    ctx.connection.execute(EFFECT, (command.job, int(command.account)))


def queue(command: ChargeInvoice, ctx: Any) -> None:
    """As `plain`; the first command fails until somebody has put job -1 into the table of effects."""
    if command.job == 0 and not ctx.connection.execute("select from effect where job = -1").fetchall():
        raise GatewayDown
    ctx.connection.execute(EFFECT, (command.job, int(command.account)))


def timed(command: ChargeInvoice, ctx: Any) -> None:
    """Writes down when it was called."""
    started = time.time()
    ctx.connection.execute(
        "insert into effect values (%s, %s, to_timestamp(%s))", (command.job, int(command.account), started)
    )


async def external(command: ChargeInvoice, ctx: Any) -> None:
    """Waits as for another system."""
    await asyncio.sleep(IO_SECONDS)


def application(handler: str, group: str = GROUP, lane: str = LANE) -> App:
    """A group with one of the handlers above."""
    found = App(group, retry=fixed("1s", attempts=1000 if handler == "queue" else 5))
    functions = (plain, result, batch, failing, queue, timed, external)
    function = {each.__name__: each for each in functions}[handler]
    if handler == "external":
        found.handler(ChargeInvoice, lane=lane, mode="external", concurrency=100)(function)
    elif handler == "batch":
        found.handler(ChargeInvoice, lane=lane, mode="batch")(function)
    else:
        found.handler(ChargeInvoice, lane=lane)(function)
    return found


app = application(os.environ.get("ONCEWARD_BENCH_HANDLER", "plain"))


def codec() -> Codec:
    """Knows the command; registers its schema where it is new."""
    registry = RegistryClient(settings.load().registry_url)
    registry.register(ChargeInvoice.SCHEMA.name, ChargeInvoice.SCHEMA.avro)
    return Codec(registry, commands=[ChargeInvoice])


def records(count: int, keys: int) -> Iterator[tuple[bytes, bytes, list[tuple[str, bytes | None]]]]:
    """Key, value and headers as the relay would produce them."""
    encoder = codec()
    for job in range(count):
        found = row(charge(job, keys), encoder, tenant="acme-42")
        pairs = [(n, None if (v := getattr(found, n)) is None else str(v).encode()) for n in headers.ALL]
        yield str(job * 7919 % keys).encode(), found.payload or b"", pairs


def main() -> None:
    """`python -m benchmarks.charges TOPIC COUNT KEYS`: put records on Kafka as the relay would."""
    topic, count, keys = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    producer = Producer(
        {
            "bootstrap.servers": settings.load().kafka_bootstrap_servers,
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "queue.buffering.max.messages": 1_000_000,
        }
    )
    for number, (key, value, pairs) in enumerate(records(count, keys)):
        producer.produce(topic, value, key=key, headers=pairs)  # type: ignore[arg-type]
        if number % 5000 == 0:
            producer.poll(0)
    producer.flush()
    print(json.dumps({"records": count}))


if __name__ == "__main__":
    main()
