"""What publishing costs beside an insert and a COPY written by hand, in one run: `python -m benchmarks.publish [rows] [--json]`.

Needs a migrated PostgreSQL in ONCEWARD_DATABASE_URL, in whose outbox it leaves nothing. CPU is this process's; a ratio above
1 is what Onceward adds. Each figure is the median of the rounds, which take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import UUID, uuid4

import psycopg
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from onceward_producer.outbox import Outbox
from onceward_schemas.avsc import command_schema
from onceward_schemas.codec import Codec
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.ids import new_id
from onceward_schemas.registry import RegisteredVersion

ROUNDS = 7
SINGLES = 2_000
OWN_WORK_SECONDS = 100e-6
"""What the caller does between two statements; left out of the figures. With none, PostgreSQL's process is still awake when
the next statement comes, which spares a statement written by hand some 15 us that no real service is spared."""
_COLUMNS = "id, aggregatetype, aggregateid, type, payload, topic, version, attempt, run_id, context"
_VALUES = ", ".join(["%s"] * 10)
_TYPES = ["uuid", "text", "text", "text", "bytea", "text", "int4", "int4", "uuid", "text"]
_RUN = uuid4()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyChange(Command):
    """Six fields, some 80 bytes of Avro."""

    employee_id: int
    position: str
    department: str
    manager_id: int | None = None
    change_id: UUID
    effective: datetime

    SCHEMA: ClassVar[CommandSchema] = command_schema(r"""
{"type": "record", "name": "ApplyChange", "namespace": "bench",
 "onceward": {"version": 1, "lane": "bench.bulk", "key": "employee_id", "aggregate": "employee"},
 "fields": [
  {"name": "employee_id", "type": "long"},
  {"name": "position", "type": "string"},
  {"name": "department", "type": "string"},
  {"name": "manager_id", "type": ["null", "long"], "default": null},
  {"name": "change_id", "type": {"type": "string", "logicalType": "uuid"}},
  {"name": "effective", "type": {"type": "long", "logicalType": "timestamp-millis"}}]}
""")


class NoRegistry:
    """The codec asks it once; it answers from memory."""

    def schema(self, schema_id: int) -> Any:
        return ApplyChange.SCHEMA.avro

    def schema_id(self, subject: str, avro: Any) -> int:
        return 7

    def versions(self, subject: str) -> tuple[RegisteredVersion, ...]:
        return ()

    def register(self, subject: str, avro: Any) -> int:
        return 7


codec = Codec(NoRegistry())
outbox = Outbox(codec)
_EFFECTIVE = datetime(2026, 3, 1, tzinfo=UTC)


def commands(count: int) -> Iterator[ApplyChange]:
    """Made beforehand by nobody: making them is part of every variant."""
    change = uuid4()
    for number in range(count):
        yield ApplyChange(
            employee_id=number,
            position="Senior engineer",
            department="Field operations",
            manager_id=number // 8,
            change_id=change,
            effective=_EFFECTIVE,
        )


def by_hand(command: ApplyChange) -> tuple[Any, ...]:
    """The row as somebody writes it who knows this one type and checks nothing."""
    item = f'{{"item":"{command.employee_id}"}}'
    key = str(command.employee_id)
    return new_id(), "employee", key, "bench.ApplyChange", codec.encode(command), "bench.bulk", 1, 1, _RUN, item


def own_work() -> None:
    """Keep the CPU busy as the rest of a request does."""
    until = time.perf_counter() + OWN_WORK_SECONDS
    while time.perf_counter() < until:
        pass


def measured(work: Callable[[], None]) -> tuple[float, float]:
    """Seconds of wall clock and of this process's CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


@dataclass(frozen=True, slots=True)
class Cost:
    """The medians of one variant."""

    rows_s: float
    cpu_us: float


def compare(title: str, count: int, variants: dict[str, Callable[[], None]], own: float = 0.0) -> dict[str, Cost]:
    """The first variant is the one written by hand; `own` seconds a row are not theirs."""
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    for _ in range(ROUNDS):
        for name, work in variants.items():
            wall, cpu = measured(work)
            samples[name].append((wall - own * count, cpu - own * count))
    print(f"\n{title}")
    base_wall, base_cpu = (statistics.median(column) for column in zip(*samples[next(iter(variants))], strict=True))
    costs = {}
    for name, pairs in samples.items():
        wall, cpu = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"  {name:<34} {count / wall:>9,.0f} rows/s  x{wall / base_wall:4.2f}"
            f"   {cpu / count * 1e6:6.1f} us CPU a row  x{cpu / base_cpu:4.2f}  {(cpu - base_cpu) / count * 1e6:+6.1f} us"
        )
        costs[name] = Cost(count / wall, cpu / count * 1e6)
    return costs


def singles(connection: psycopg.Connection, session: Session) -> dict[str, Cost]:
    """One statement a command, all in a transaction that is rolled back."""
    insert = f"insert into onceward.outbox ({_COLUMNS}) values ({_VALUES})"
    names = [name.strip() for name in _COLUMNS.split(",")]
    bound = text(f"insert into onceward.outbox ({_COLUMNS}) values ({', '.join(f':{name}' for name in names)})")

    def hand() -> None:
        for command in commands(SINGLES):
            own_work()
            connection.execute(insert, by_hand(command))
        connection.rollback()

    def ours(**options: Any) -> None:
        for command in commands(SINGLES):
            own_work()
            if options:
                options["dedupe_key"] = str(command.employee_id)
            outbox.publish(connection, command, run_id=_RUN, item=str(command.employee_id), **options)
        connection.rollback()

    def nothing() -> None:
        for _ in commands(SINGLES):
            own_work()
            connection.execute("select 1")
        connection.rollback()

    def hand_session() -> None:
        with session.begin():
            for command in commands(SINGLES):
                own_work()
                session.execute(bound, dict(zip(names, by_hand(command), strict=True)))
            session.rollback()

    def our_session() -> None:
        with session.begin():
            for command in commands(SINGLES):
                own_work()
                outbox.publish(session, command, run_id=_RUN, item=str(command.employee_id))
            session.rollback()

    variants: dict[str, Callable[[], None]] = {
        "insert by hand": hand,
        "publish": ours,
        "publish with a dedupe key": lambda: ours(dedupe_key=""),
        "(select 1)": nothing,
    }
    costs = compare("one at a time, psycopg", SINGLES, variants, OWN_WORK_SECONDS)
    compare(
        "one at a time, Session", SINGLES, {"insert by hand": hand_session, "publish": our_session}, OWN_WORK_SECONDS
    )
    return costs


def bulk(connection: psycopg.Connection, session: Session, count: int) -> dict[str, Cost]:
    """Many rows in a transaction that is rolled back."""

    def hand() -> None:
        cursor = connection.cursor()
        with cursor.copy(f"copy onceward.outbox ({_COLUMNS}) from stdin (format binary)") as copy:
            copy.set_types(_TYPES)
            for command in commands(count):
                copy.write_row(by_hand(command))
        connection.rollback()

    def ours() -> None:
        pairs = ((command, {"item": str(command.employee_id)}) for command in commands(count))
        outbox.publish_many(connection, pairs, run_id=_RUN)  # type: ignore[arg-type]
        connection.rollback()

    def plain() -> None:
        outbox.publish_many(connection, commands(count), run_id=_RUN)
        connection.rollback()

    def deduped() -> None:
        pairs = ((command, {"dedupe_key": str(command.employee_id)}) for command in commands(count))
        outbox.publish_many(connection, pairs, run_id=_RUN)  # type: ignore[arg-type]
        connection.rollback()

    def our_session() -> None:
        with session.begin():
            pairs = ((command, {"item": str(command.employee_id)}) for command in commands(count))
            outbox.publish_many(session, pairs, run_id=_RUN)  # type: ignore[arg-type]
            session.rollback()

    variants = {
        "COPY by hand": hand,
        "publish_many, an item each": ours,
        "publish_many, no own options": plain,
        "publish_many, a dedupe key each": deduped,
        "publish_many, Session": our_session,
    }
    return compare(f"{count:,} rows at a time", count, variants)


def main() -> None:
    parser = argparse.ArgumentParser(description="What publishing costs beside an insert and a COPY written by hand.")
    parser.add_argument("rows", type=int, nargs="?", default=20_000)
    parser.add_argument("--json", action="store_true", help="End with a line of JSON: CPU of singles, speed of bulk.")
    given = parser.parse_args()
    dsn = os.environ["ONCEWARD_DATABASE_URL"]
    engine = create_engine(f"postgresql+psycopg{dsn[dsn.index('://') :]}")
    print(f"{len(codec.encode(next(commands(1))))} bytes of payload, medians of {ROUNDS} rounds")
    with psycopg.connect(dsn) as connection, Session(engine) as session, suppress(KeyboardInterrupt):
        single = singles(connection, session)
        many = bulk(connection, session, given.rows)
        if given.json:
            figures = {name: cost.cpu_us for name, cost in single.items()}
            print(json.dumps(figures | {name: cost.rows_s for name, cost in many.items()}))


if __name__ == "__main__":
    main()
