"""A command's whole story, for whoever has to find out why a promise was broken to it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final
from uuid import UUID

import psycopg
from confluent_kafka import Consumer, TopicPartition
from psycopg.rows import dict_row

from tests.chaos.evidence import Evidence
from tests.chaos.gateway import calls
from tests.chaos.trial import Trial

_DEAD_LETTER: Final = """
select reason, error, attempts, dead_at, state, updated_at, topic, partition, "offset", worker
from onceward.dead_letters where command_id = %(id)s"""
_TABLES: Final = (
    ("ledger", "select * from onceward.ledger where command_id = %(id)s"),
    ("attempts", "select * from onceward.attempts where command_id = %(id)s order by attempt"),
    (
        "parked",
        'select seq, reason, attempt, topic, partition, "offset" from onceward.parked where command_id = %(id)s',
    ),
    ("holds", "select * from onceward.holds where key = %(key)s"),
    ("dead letter", _DEAD_LETTER),
    ("outbox", "select seq, topic, attempt, created_at from onceward.outbox where id = %(id)s"),
    ("effects", "select * from chaos.effects where id = %(id)s order by position"),
)
_NEIGHBOURS: Final = 2


def stories(trial: Trial, evidence: Evidence, ids: Collection[UUID]) -> Iterator[str]:
    """One line after the other, for each of the commands."""
    records = _records(trial, ids)
    found = calls(trial.stage.gateway)
    with psycopg.connect(trial.group.dsn, row_factory=dict_row, autocommit=True) as connection:
        for identity in ids:
            key, number = evidence.published.get(identity, ("", 0))
            yield f"-- {identity}: {key} {number}, meant: {trial.plan.fate(key, number)}"
            for name, query in _TABLES:
                for row in connection.execute(query, {"id": identity, "key": key}):
                    yield f"   {name}: {_short(row)}"
            for call in found:
                if call.id == str(identity):
                    yield f"   call: {call}"
            for record in records.get(identity, []):
                yield f"   record: {record}"
            for other, at in sorted(evidence.published.items(), key=lambda item: item[1][1]):
                if at[0] == key and other != identity and abs(at[1] - number) <= _NEIGHBOURS:
                    for effect in evidence.effects:
                        if effect.id == other:
                            yield f"   beside it: {effect}"
                    if other in evidence.deaths:
                        yield f"   beside it: {at} {evidence.deaths[other]}"


def _short(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in row.items() if value is not None)


def _records(trial: Trial, ids: Collection[UUID]) -> dict[UUID, list[str]]:
    """Where Kafka has the commands: topic, partition, offset, time and attempt."""
    wanted = {str(identity).encode(): identity for identity in ids}
    result: dict[UUID, list[str]] = {}
    settings = trial.group.settings
    consumer = Consumer(settings.kafka(**{"group.id": "chaos-story", "enable.partition.eof": True, "log_level": 0}))
    try:
        found = consumer.list_topics(timeout=10).topics
        names = [name for name in found if name.startswith(trial.stage.lane)]
        parts = [TopicPartition(name, n, 0) for name in names for n in found[name].partitions]
        consumer.assign(parts)
        open_parts = len(parts)
        while open_parts and (message := consumer.poll(10)) is not None:
            if message.error() is not None:
                open_parts -= 1
                continue
            pairs: list[tuple[str, Any]] = message.headers() or []  # type: ignore[assignment]
            headers = dict(pairs)
            if (identity := wanted.get(headers.get("id") or b"")) is not None:
                attempt = (headers.get("attempt") or b"").decode()
                place = f"{message.topic()} {message.partition()} @{message.offset()}"
                result.setdefault(identity, []).append(f"{place} at {message.timestamp()[1]} attempt {attempt}")
    finally:
        consumer.close()
    return result
