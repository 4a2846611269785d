"""`python -m tests.chaos.fuzz_trial`: spoiled records straight to Kafka, a worker that lives through them, and the account."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import psycopg
from confluent_kafka import KafkaError, Message, Producer

from onceward_devstack.launcher import launch
from onceward_devstack.processes import memory_mib
from tests.chaos.accounts import Books, Place, account
from tests.chaos.fuzz import Record, Source
from tests.chaos.fuzz_app import application
from tests.chaos.gateway import calls
from tests.chaos.lag import lag_of
from tests.chaos.servers import own_servers
from tests.chaos.writer import SCHEMA
from tests.support.charges import charge
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, Group, app_name, group_of
from tests.support.databases import fresh_database
from tests.support.services import ROOT, Services

MOST_GROWTH_MIB: Final = 250
"""The buffer of 64 MiB, what the client has fetched, and what Python holds of both."""
_SECONDS_PER_THOUSAND: Final = 10.0


@dataclass(frozen=True, slots=True)
class Account:
    """How it went."""

    outcomes: Counter[str]
    findings: list[str]
    seconds: float
    memory: list[int] = field(default_factory=list)
    """MiB, by the second."""


def run(services: Services, dsn: str, prefix: str, logs: Path, *, records: int, seed: int = 1) -> Account:
    """Send, wait until the group has read all of it and nothing is under way, and account for each record."""
    started = time.monotonic()
    arguments = app_name(prefix), f"{prefix}fuzzed", str(logs / "fuzz-gateway.jsonl")
    group = group_of(application(*arguments), services, dsn)
    group.query(SCHEMA)
    sent = _send(services.bootstrap, arguments[1], Source(_payloads(group), seed, round(time.time() * 1000)), records)
    process = launch(
        [sys.executable, "-m", "tests.chaos.fuzz_app", *arguments],
        log=logs / "fuzz.log",
        folder=ROOT,
        death_signal=signal.SIGKILL,
        environment={
            "ONCEWARD_DATABASE_URL": dsn,
            "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS": services.bootstrap,
            "ONCEWARD_REGISTRY_URL": services.registry_url,
            "ONCEWARD_LOG_LEVEL": "error",
        },
    )
    findings: list[str] = []
    memory: list[int] = []
    until = time.monotonic() + 60 + _SECONDS_PER_THOUSAND * records / 1000
    try:
        with Forwarder(dsn, services.bootstrap):
            while process.poll() is None and time.monotonic() < until and _left(group, arguments[1]):
                memory.append(memory_mib(process.pid) or 0)
                time.sleep(1.0)
        if process.poll() is not None:
            findings.append(f"the worker ended with code {process.returncode}: see {logs / 'fuzz.log'}")
        elif left := _left(group, arguments[1]):
            findings.append(f"stuck: {left}")
        process.send_signal(signal.SIGTERM)
        if (code := process.wait(40)) != 0:
            findings.append(f"the worker left with code {code}")
    finally:
        process.kill()
        process.wait()
    if b"Traceback (most recent" in (logs / "fuzz.log").read_bytes():
        findings.append(f"a traceback in {logs / 'fuzz.log'}")
    early = memory[min(len(memory) - 1, 5)] if memory else 0
    if memory and max(memory) > early + MOST_GROWTH_MIB:
        findings.append(f"its memory grew from {early} to {max(memory)} MiB")
    outcomes, problems = account(sent, _books(group, arguments[1], arguments[2]), arguments[0])
    return Account(outcomes, findings + problems, time.monotonic() - started, memory)


def _payloads(group: Group) -> dict[str, list[bytes]]:
    encode = group.codec.encode
    return {
        "test.Increment": [encode(Increment(counter=f"c{n}", amount=n, note="ü" * (n % 5))) for n in range(50)],
        "test.Charge": [encode(charge(count=n, labels={"a": "b" * n})) for n in range(50)],
        "test.Settle": [encode(Settle(batch=n)) for n in range(50)],
    }


def _send(bootstrap: str, lane: str, source: Source, count: int) -> dict[Place, Record]:
    sent: dict[Place, Record] = {}
    refused: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "message.max.bytes": 2_000_000,
            "linger.ms": 5,
            "log_level": 0,
        }
    )
    for record in source.records(count):

        def note(error: KafkaError | None, message: Message, record: Record = record) -> None:
            partition, offset = message.partition(), message.offset()
            if error is not None or partition is None or offset is None:
                refused.append(error or KafkaError(KafkaError._FAIL))
            else:
                sent[partition, offset] = record

        options: dict[str, Any] = {"timestamp": record.timestamp_ms} if record.timestamp_ms else {}
        while True:
            try:
                producer.produce(
                    lane, value=record.payload, key=record.key, headers=record.headers, on_delivery=note, **options
                )
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not refused, refused[:3]
    return sent


def _left(group: Group, lane: str) -> dict[str, int]:
    """What has not ended; parked commands wait for a deployment or a registration, and are at rest."""
    with psycopg.connect(group.dsn, autocommit=True) as connection:
        row = connection.execute(
            "select (select count(*) from onceward.outbox),"
            " (select count(*) from onceward.ledger where state in ('running', 'retrying')),"
            " (select count(*) from onceward.holds where state = 'draining')"
        ).fetchone()
        assert row is not None
    lag = lag_of(group.settings, group.app.name, [lane, f"{lane}.{group.app.name}.retry.100ms"])
    found = dict(zip(("outbox", "under way", "draining", "lag"), (*row, lag), strict=True))
    return {name: count for name, count in found.items() if count}


def _books(group: Group, lane: str, gateway: str) -> Books:
    query = 'select partition, "offset", command_id from onceward.{} where topic = %s'
    effects: Counter[UUID] = Counter(row[0] for row in group.query("select id from chaos.effects"))
    effects.update(UUID(call.id) for call in calls(gateway))
    discarded = group.query("select command_id from onceward.ledger where state = 'discarded'")
    return Books(
        dead={(p, o): i for p, o, i in group.query(query.format("dead_letters"), lane)},
        parked={(p, o): i for p, o, i in group.query(query.format("parked"), lane)},
        effects=effects,
        discarded=frozenset(row[0] for row in discarded),
    )


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.chaos.fuzz_trial", description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--logs", type=Path)
    arguments = parser.parse_args()
    logs = arguments.logs or Path(tempfile.mkdtemp(prefix="onceward-fuzz-"))
    logs.mkdir(parents=True, exist_ok=True)
    with own_servers(doors=0) as servers, fresh_database(servers.stack.postgres.dsn) as dsn:
        found = run(servers.services, dsn, "fuzz.", logs, records=arguments.records, seed=arguments.seed)
    print(", ".join(f"{count} {name}" for name, count in found.outcomes.most_common()))
    print(f"{found.seconds:.0f} s, memory {found.memory[:1]} to {max(found.memory, default=0)} MiB; logs in {logs}")
    for finding in found.findings[:30]:
        print(f"  {finding}")
    print(f"{int(not found.findings)} passed, {int(bool(found.findings))} failed")
    return 1 if found.findings else 0


if __name__ == "__main__":
    sys.exit(main())
