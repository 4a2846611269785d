"""A dead letter is decided once: replayed with its own bytes, in its key's lane, for its group only; or discarded."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from onceward_consumer.dead_letter_decisions import discard, replay
from onceward_consumer.dead_letters import Identity
from onceward_schemas.envelope import Context
from onceward_schemas.errors import DeadLetterError
from onceward_schemas.ids import new_id
from tests.support.dead_letters import Given, bury

Connection = psycopg.Connection[Any]


@pytest.fixture
def connection(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def rows(connection: Connection, statement: str, *parameters: Any) -> list[Any]:
    return connection.execute(statement, parameters).fetchall()


def ledger(connection: Connection, identity: Identity) -> Any:
    [row] = rows(
        connection,
        "select state, attempt, attempts_before, reason, first_failed_at from onceward.ledger where consumer_group = %s and command_id = %s",
        *identity,
    )
    return row


def state(connection: Connection, identity: Identity) -> Any:
    [row] = rows(
        connection,
        "select state, decided_by, decided_because from onceward.dead_letters "
        "where consumer_group = %s and command_id = %s",
        *identity,
    )
    return row


def hold(connection: Connection, head: Identity, state: str = "dead", key: str = "ann") -> None:
    connection.execute(
        "insert into onceward.holds (consumer_group, lane, key, state, head_id) values (%s, 'hr.moves', %s, %s, %s)",
        (head.group, key, state, head.command_id),
    )


def park(connection: Connection, group: str = "hr", key: str = "ann") -> None:
    connection.execute(
        'insert into onceward.parked (consumer_group, command_id, lane, key, reason, topic, partition, "offset", '
        "timestamp_ms, headers) values (%s, %s, 'hr.moves', %s, 'held', 'hr.moves', 0, 1, 0, '[]')",
        (group, new_id(), key),
    )


def test_a_replay_is_one_outbox_row_with_the_original_bytes(connection: Connection) -> None:
    due = datetime(2026, 1, 1, tzinfo=UTC)
    letter = bury(connection, Given(attempts=3, context=Context(origin="screen", due_at=due, idempotency_key="k-1")))
    decision = replay(connection, [letter], by="ann@ops", because="gateway mended")
    assert decision.done == (letter,)
    assert decision.refused == ()
    [row] = rows(
        connection,
        "select id, topic, aggregateid, type, payload, attempt, tenant, context from onceward.outbox",
    )
    assert row[:7] == (letter.command_id, "hr.moves", "ann", "test.Move", b"\0\0\0\0\1payload", 4, "acme")
    assert json.loads(row[7]) == {"origin": "screen", "idempotency_key": "k-1", "group": "hr"}
    assert ledger(connection, letter) == ("retrying", 4, 3, None, None)
    assert state(connection, letter) == ("replaying", "ann@ops", "gateway mended")


def test_only_known_headers_come_along(connection: Connection) -> None:
    more = (
        ("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"),
        ("kafka_replicated", b"x"),
        ("bin", b"\xff"),
    )
    replay(connection, [bury(connection, Given(more_headers=more))], by="ann")
    [(traceparent, everything)] = rows(connection, "select traceparent, to_json(outbox)::text from onceward.outbox")
    assert traceparent == more[0][1].decode()
    assert "replicated" not in everything


def test_the_second_of_two_replays_at_once_is_refused(connection: Connection, database: str) -> None:
    letter = bury(connection, Given())
    results: list[Any] = []

    def second() -> None:
        with psycopg.connect(database, autocommit=True) as other:
            results.append(replay(other, [letter], by="bob"))

    with connection.transaction():
        assert replay(connection, [letter], by="ann").done == (letter,)
        thread = threading.Thread(target=second)
        thread.start()
        _until_somebody_waits(database)
    thread.join(10)
    [decision] = results
    assert decision.done == ()
    assert [refusal.reason for refusal in decision.refused] == ["is being replayed already (by ann)"]
    assert rows(connection, "select count(*) from onceward.outbox") == [(1,)]


def _until_somebody_waits(database: str) -> None:
    deadline = datetime.now(UTC).timestamp() + 10
    with psycopg.connect(database, autocommit=True) as watcher:
        while not watcher.execute(
            "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        ).fetchall():
            assert datetime.now(UTC).timestamp() < deadline, "the second replay does not wait"


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ("replaying", "is being replayed already"),
        ("resolved", "is resolved: a replay of it went through"),
        ("discarded", "is discarded already"),
    ],
)
def test_what_is_not_open_is_left_alone(connection: Connection, found: str, says: str) -> None:
    letter, other = bury(connection, Given()), bury(connection, Given(key="bob"))
    connection.execute("update onceward.dead_letters set state = %s where command_id = %s", (found, letter.command_id))
    for decision in (
        replay(connection, [letter, other], by="ann"),
        discard(connection, [letter], by="ann", because="old"),
    ):
        assert [(refusal.identity, refusal.reason) for refusal in decision.refused] == [(letter, says)]
    assert state(connection, letter)[0] == found
    assert state(connection, other)[0] == "replaying"


def test_an_unknown_id_is_refused(connection: Connection) -> None:
    [refusal] = replay(connection, [Identity("hr", uuid4())], by="ann").refused
    assert refusal.reason == "is not a dead letter"


def test_a_command_that_went_on_since_is_not_run_again(connection: Connection) -> None:
    letter = bury(connection, Given())
    connection.execute("update onceward.ledger set state = 'done'")
    [refusal] = replay(connection, [letter], by="ann").refused
    assert "has gone on since" in refusal.reason
    assert state(connection, letter)[0] == "open"
    assert rows(connection, "select count(*) from onceward.outbox") == [(0,)]


def test_a_ledger_row_that_retention_dropped_comes_back(connection: Connection) -> None:
    letter = bury(connection, Given(attempts=5, in_ledger=False))
    assert replay(connection, [letter], by="ann").done == (letter,)
    assert ledger(connection, letter)[:3] == ("retrying", 6, 5)


def test_the_replays_of_a_key_keep_the_order_of_publishing(connection: Connection) -> None:
    letters = [bury(connection, Given(hours_ago=hours)) for hours in (1, 3, 2)]
    replay(connection, [letters[2], letters[0], letters[1]], by="ann")
    ids = [row[0] for row in rows(connection, "select id from onceward.outbox order by seq")]
    assert ids == [letter.command_id for letter in letters]


def test_one_command_dead_in_two_groups_is_decided_in_each(connection: Connection) -> None:
    command_id = new_id()
    ours, theirs = bury(connection, Given(id=command_id)), bury(connection, Given(id=command_id, group="audit"))
    replay(connection, [ours], by="ann")
    assert state(connection, theirs)[0] == "open"
    replay(connection, [theirs], by="ann")
    groups = [
        json.loads(row[0])["group"] for row in rows(connection, "select context from onceward.outbox order by seq")
    ]
    assert groups == ["hr", "audit"]


def test_what_cannot_be_written_as_a_record_is_refused(connection: Connection) -> None:
    bad_key, bad_header, fine = (bury(connection, Given()) for _ in range(3))
    connection.execute(
        "update onceward.dead_letters set record_key = '\\xff', key = '\\xff' where command_id = %s",
        (bad_key.command_id,),
    )
    connection.execute(
        'update onceward.dead_letters set headers = \'[["id", "x"]]\' where command_id = %s', (bad_header.command_id,)
    )
    decision = replay(connection, [bad_key, bad_header, fine], by="ann")
    assert decision.done == (fine,)
    assert {refusal.identity for refusal in decision.refused} == {bad_key, bad_header}
    assert all("Publish the command anew" in refusal.reason for refusal in decision.refused)
    assert ledger(connection, bad_key)[0] == "dead"


def test_an_empty_key_and_no_key_stay_what_they_are(connection: Connection) -> None:
    for key in ("", None):
        replay(connection, [bury(connection, Given(key=key))], by="ann")
    assert rows(connection, "select aggregateid from onceward.outbox order by seq") == [("",), (None,)]


def test_a_strict_key_waits_for_the_replay(connection: Connection) -> None:
    letter, other = bury(connection, Given()), bury(connection, Given(key="bob"))
    hold(connection, letter)
    hold(connection, other, key="bob")
    park(connection)
    replay(connection, [letter], by="ann")
    assert rows(connection, "select key, state from onceward.holds order by key") == [
        ("ann", "retrying"),
        ("bob", "dead"),
    ]


def test_discarding_the_head_of_a_strict_key_releases_its_followers(connection: Connection) -> None:
    followed, alone = bury(connection, Given()), bury(connection, Given(key="bob"))
    hold(connection, followed)
    hold(connection, alone, key="bob")
    park(connection)
    park(connection, group="audit", key="bob")
    discard(connection, [followed, alone], by="ann", because="employee left")
    assert rows(connection, "select key, state from onceward.holds") == [("ann", "draining")]
    assert state(connection, followed) == ("discarded", "ann", "employee left")
    assert ledger(connection, alone)[:3] == ("discarded", 3, 0)
    assert rows(connection, "select count(*) from onceward.outbox") == [(0,)]


def test_a_follower_parked_at_the_last_moment_is_not_forgotten(connection: Connection, database: str) -> None:
    letter = bury(connection, Given())
    hold(connection, letter)
    thread = threading.Thread(target=_discard_elsewhere, args=(database, letter))
    with connection.transaction():
        connection.execute("select from onceward.holds where key = 'ann' for key share")
        thread.start()
        _until_somebody_waits(database)
        park(connection)
    thread.join(10)
    assert rows(connection, "select state from onceward.holds") == [("draining",)]


def _discard_elsewhere(database: str, letter: Identity) -> None:
    with psycopg.connect(database, autocommit=True) as other:
        discard(other, [letter], by="bob", because="old")


def test_a_discard_needs_a_reason(connection: Connection) -> None:
    letter = bury(connection, Given())
    with pytest.raises(DeadLetterError, match="needs a reason"):
        discard(connection, [letter], by="ann", because=" ")
    assert state(connection, letter)[0] == "open"


def test_a_failure_half_way_leaves_all_as_it_was(connection: Connection) -> None:
    letter = bury(connection, Given())
    connection.execute("alter table onceward.outbox add constraint refuse check (topic = 'none')")
    with pytest.raises(psycopg.errors.CheckViolation):
        replay(connection, [letter], by="ann")
    assert state(connection, letter)[0] == "open"
    assert ledger(connection, letter)[0] == "dead"


def test_a_replayed_item_waits_again_and_its_run_is_open(connection: Connection) -> None:
    run_id = new_id()
    letter = bury(connection, Given(run_id=run_id, item="emp-1"))
    connection.execute(
        "insert into onceward.runs (id, kind, state) values (%s, 'mail', 'completed_with_errors')", (run_id,)
    )
    connection.execute(
        "insert into onceward.run_items (run_id, stage, item, state, consumer_group, command_id) "
        "values (%s, 'mailed', 'emp-1', 'failed', 'hr', %s)",
        (run_id, letter.command_id),
    )
    replay(connection, [letter], by="ann")
    assert rows(connection, "select state from onceward.run_items") == [("retrying",)]
    assert rows(connection, "select state from onceward.runs") == [("running",)]
