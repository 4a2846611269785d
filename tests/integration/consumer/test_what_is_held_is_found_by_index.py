"""Looking for held keys and for followers reads an index only, whatever the tables held when the plan was made.

Each group of commands asks whether its keys are held, mostly in vain: that must cost neither a visit to the table nor a lock.
Plans are kept by sessions, so one that was made for an empty table has to be right when thousands of keys are held.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from onceward_runtime.sql import query

GROUP, LANE = "hr", "hr.moves"
HELD = 5_000

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("set plan_cache_mode = force_generic_plan")
        yield connection


def prepare(connection: Connection, name: str, types: str) -> None:
    """As a session of a worker does: its parameters in the order of `types`, named as in the statement."""
    text = query("onceward_consumer", name)
    for number, parameter in enumerate(re.findall(r"(\w+) \S+?(?:, |$)", types), 1):
        text = text.replace(f"%({parameter})s", f"${number}")
    connection.execute(f"prepare {name}({', '.join(t.split(' ', 1)[1] for t in types.split(', '))}) as {text}")


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


def explained(connection: Connection, call: str) -> list[dict[str, Any]]:
    """The nodes of the plan with which a prepared statement has just run."""
    [[answer]] = connection.execute(f"explain (analyze, buffers, format json) execute {call}").fetchall()
    found = answer if isinstance(answer, list) else json.loads(answer)
    return list(nodes(found[0]["Plan"]))


def hold(connection: Connection, count: int) -> None:
    connection.execute(
        "insert into onceward.holds (consumer_group, lane, key, state, head_id)"
        " select %s, %s, 'held' || number, 'retrying', gen_random_uuid() from generate_series(1, %s) as number",
        (GROUP, LANE, count),
    )


@pytest.mark.parametrize("before", ["as migrated", "vacuumed while empty"])
def test_that_nothing_is_held_is_read_from_the_index_alone(connection: Connection, before: str) -> None:
    if before == "vacuumed while empty":
        connection.execute("vacuum (analyze) onceward.holds")
    prepare(connection, "holds_of", "group text, lanes text[], keys text[]")
    keys = "{" + ",".join(f"free{number}" for number in range(100)) + "}"
    for held in (0, HELD):
        hold(connection, held)
        found = explained(connection, f"holds_of('{GROUP}', '{{{LANE}}}', '{keys}')")
        [scan] = found
        assert (scan["Node Type"], scan["Index Name"]) == ("Index Only Scan", "holds_pkey"), "and no LockRows above it"
        assert scan["Heap Fetches"] == 0
        assert scan["Actual Rows"] == 0
        assert scan["Shared Hit Blocks"] + scan["Shared Read Blocks"] < 500, "a few pages for each of a hundred keys"


@pytest.mark.parametrize("name", ["holds_lock", "holds_share", "holds_remove_lock"])
def test_what_is_held_is_locked_by_way_of_the_index(connection: Connection, name: str) -> None:
    connection.execute("vacuum (analyze) onceward.holds")
    prepare(connection, name, "group text, lanes text[], keys text[]")
    hold(connection, HELD)
    found = explained(connection, f"{name}('{GROUP}', '{{{LANE},{LANE}}}', '{{held7,held8}}')")
    reads = [node for node in found if node.get("Relation Name") == "holds" or node.get("Index Name")]
    assert {node.get("Index Name", "holds_pkey") for node in reads} == {"holds_pkey"}
    assert "Seq Scan" not in {node["Node Type"] for node in found}
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in reads) <= 4, "only what was asked for is read"


def test_followers_are_read_by_key_however_many_others_wait(connection: Connection) -> None:
    connection.execute("vacuum (analyze) onceward.parked")
    types = "group text, lanes text[], keys text[], drained bigint[], per_key int, most_bytes int"
    prepare(connection, "release_parked", types)
    connection.execute(
        'insert into onceward.parked (consumer_group, command_id, lane, key, reason, topic, partition, "offset",'
        " timestamp_ms, headers) select %s, gen_random_uuid(), %s, 'k' || number %% 500, 'held', '', 0, 0, 0, '[]'"
        " from generate_series(1, %s) as number",
        (GROUP, LANE, HELD),
    )
    call = f"release_parked('{GROUP}', '{{{LANE},{LANE}}}', '{{k7,k8}}', '{{0,0}}', 3, 1000000)"
    found = explained(connection, call)
    assert "Seq Scan" not in {node["Node Type"] for node in found}
    [scan] = [node for node in found if node.get("Relation Name") == "parked"]
    assert scan["Index Name"] == "parked_followers"
    assert scan.get("Rows Removed by Filter", 0) == 0
    assert scan["Actual Rows"] * scan["Actual Loops"] == 6
