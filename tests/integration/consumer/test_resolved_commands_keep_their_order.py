"""Parked commands that can be run now are sent round in the order in which they arrived."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any, cast

import psycopg

from onceward_consumer.deliveries import headers_to_json
from onceward_consumer.parked import requeue_resolved
from tests.support.commands import Increment
from tests.unit.consumer.test_groups_find_the_culprit import group


class Decoded:
    """A codec that always answers with the same command."""

    def decode(self, payload: bytes) -> Increment:
        return Increment(counter="a")


def test_the_order_is_that_of_arrival_and_not_of_identities(database: str) -> None:
    _, found = group("a")
    engine = dataclasses.replace(found, codec=cast(Any, Decoded()))
    identities = sorted((uuid.uuid4() for _ in range(8)), reverse=True)
    with psycopg.connect(database, autocommit=True) as connection:
        for offset, identity in enumerate(identities):
            connection.execute(
                "insert into onceward.ledger (command_id, consumer_group, state) values (%s, %s, 'parked')",
                (identity, engine.group),
            )
            connection.execute(
                'insert into onceward.parked (consumer_group, command_id, lane, reason, topic, partition, "offset",'
                " timestamp_ms, payload, headers) values (%s, %s, 't', 'unknown_type', 't', 0, %s, 0, '', %s)",
                (engine.group, identity, offset, headers(identity, Increment.SCHEMA.name)),
            )
        assert requeue_resolved(connection, engine) == 8
        assert [row[0] for row in connection.execute("select id from onceward.outbox order by seq")] == identities


def headers(identity: uuid.UUID, kind: str) -> str:
    found = headers_to_json([("id", str(identity).encode()), ("type", kind.encode())])
    assert isinstance(found, str)
    return found
