"""What becomes of commands that fail: retried in order, dead-lettered, discarded; and of records that cannot be run."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Producer

from onceward_consumer.app import App
from onceward_consumer.context import Context
from onceward_consumer.failures import Discard, Reject, Retry
from onceward_consumer.handlers import Order
from onceward_consumer.policy import fixed
from onceward_schemas.ids import new_id
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

EFFECT = "create table effect (seq bigint generated always as identity, counter text, amount int, attempt int)"
INSERT = "insert into effect (counter, amount, attempt) values (%s, %s, %s)"


def build(
    services: Services,
    dsn: str,
    prefix: str,
    before: Callable[[Increment, Context], None],
    *,
    order: Order = "retry",
    attempts: int = 3,
) -> Group:
    app = App(app_name(prefix))

    @app.handler(Increment, lane=f"{prefix}counter", order=order, retry=fixed("300ms", attempts=attempts))
    def increment(command: Increment, ctx: Context) -> None:
        ctx.connection.execute(INSERT, (command.counter, command.amount, ctx.attempt))
        before(command, ctx)

    group = group_of(app, services, dsn)
    group.query(EFFECT)
    return group


def amounts(group: Group, counter: str) -> list[int]:
    return [row[0] for row in group.query("select amount from effect where counter = %s order by seq", counter)]


def test_a_key_waits_for_its_retry_and_others_do_not(services: Services, database: str, topic_prefix: str) -> None:
    def fail_once(command: Increment, ctx: Context) -> None:
        if command.counter == "a" and command.amount == 2 and ctx.attempt < 3:
            raise Retry("not_yet")

    group = build(services, database, topic_prefix, fail_once)
    group.publish(Increment(counter=key, amount=n) for n in range(6) for key in "abc")
    with Forwarder(database, services.bootstrap) as forwarder, group.running():
        eventually(lambda: group.count("select count(*) from effect") == 18 and group.settled(), "18 effects")
    assert amounts(group, "a") == amounts(group, "b") == list(range(6))
    [(attempts, first)] = group.query("select max(attempt), min(seq) from effect where counter = 'a' and amount = 2")
    assert attempts == 3
    assert group.count("select count(*) from effect where counter <> 'a' and seq < %s", first) == 12
    assert group.query("select attempt, outcome, reason from onceward.attempts order by attempt") == [
        (1, "failed", "not_yet"),
        (2, "failed", "not_yet"),
    ]
    assert sorted(attempt for topic, _, attempt in forwarder.forwarded if ".retry.300ms" in topic) == [2, 3]


def test_who_raises_before_any_statement_has_no_neighbour_called_again(
    services: Services, database: str, topic_prefix: str
) -> None:
    calls: list[tuple[str, int]] = []
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", retry=fixed("300ms", attempts=3))
    def increment(command: Increment, ctx: Context) -> None:
        calls.append((command.counter, ctx.attempt))
        if command.counter == "bad" and ctx.attempt == 1:
            raise Retry("not_yet")
        ctx.connection.execute(INSERT, (command.counter, command.amount, ctx.attempt))

    group = group_of(app, services, database)
    group.query(EFFECT)
    with Forwarder(database, services.bootstrap), group.running():
        group.publish(Increment(counter="bad" if n == 20 else f"k{n}", amount=n) for n in range(40))
        eventually(lambda: group.count("select count(*) from effect") == 40 and group.settled(), "40 effects")
    assert sorted(calls) == sorted([(f"k{n}", 1) for n in range(40) if n != 20] + [("bad", 1), ("bad", 2)])


def test_what_a_handler_did_by_a_block_of_its_own_is_undone_when_it_raises(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", retry=fixed("300ms", attempts=3))
    def add_and_fail(command: Increment, ctx: Context) -> None:
        with ctx.connection.transaction(), ctx.connection.cursor() as cursor:
            cursor.executemany(INSERT, [(command.counter, command.amount, ctx.attempt)])
        if ctx.attempt == 1:
            raise Retry("not_yet")

    group = group_of(app, services, database)
    group.query(EFFECT)
    group.publish(Increment(counter="a", amount=n) for n in range(3))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.count("select count(*) from effect") == 3 and group.settled(), "effects")
    assert group.query("select amount, attempt from effect order by seq") == [(n, 2) for n in range(3)]


def test_followers_go_on_after_a_dead_letter(services: Services, database: str, topic_prefix: str) -> None:
    def give_up(command: Increment, ctx: Context) -> None:
        if command.amount == 1:
            raise ConnectionError("no route to amqp://hr:hunter2@mq/")

    group = build(services, database, topic_prefix, give_up, attempts=2)
    ids = group.publish(Increment(counter="a", amount=n) for n in range(4))
    with Forwarder(database, services.bootstrap) as forwarder, group.running():
        eventually(lambda: len(amounts(group, "a")) == 3 and group.settled(), "followers")
    assert amounts(group, "a") == [0, 2, 3]
    [letter] = group.query("select command_id, reason, cause, attempts, state, key, type from onceward.dead_letters")
    assert letter == (ids[1], "attempts_exhausted", "connection", 2, "open", "a", "test.Increment")
    where = f"(test_failures.py:{give_up.__code__.co_firstlineno + 2} in give_up)"
    stored = group.query("select error from onceward.attempts union all select error from onceward.dead_letters")
    assert stored == [(f"ConnectionError: no route to amqp://hr:***@mq/ {where}",)] * 3
    assert [topic for topic, found, _ in forwarder.forwarded if found == ids[1]][-1].endswith(".dlq")
    assert group.states() == {"done": 3, "dead": 1}


def test_a_permanent_failure_costs_one_attempt(services: Services, database: str, topic_prefix: str) -> None:
    def reject(command: Increment, ctx: Context) -> None:
        if command.amount == 1:
            raise Reject("unknown_employee")

    group = build(services, database, topic_prefix, reject)
    group.publish(Increment(counter="a", amount=n) for n in range(3))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 2, "dead": 1} and group.settled(), "dead letter")
    assert amounts(group, "a") == [0, 2]
    assert group.query("select reason, attempts from onceward.dead_letters") == [("unknown_employee", 1)]


def test_strict_order_waits_for_the_operator(services: Services, database: str, topic_prefix: str) -> None:
    def reject(command: Increment, ctx: Context) -> None:
        if command.amount == 1 and ctx.attempt == 1:
            raise Reject("unknown_employee")

    group = build(services, database, topic_prefix, reject, order="strict")
    group.publish(Increment(counter="a", amount=n) for n in range(4))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 1, "dead": 1, "parked": 2}, "parked followers")
        assert group.query("select state from onceward.holds") == [("dead",)]
        replay(group)
        eventually(lambda: group.states() == {"done": 4} and group.settled(), "replayed key")
    assert amounts(group, "a") == [0, 1, 2, 3]
    assert group.query("select state from onceward.dead_letters") == [("resolved",)]


def replay(group: Group) -> None:
    import psycopg

    from onceward_consumer import dead_letter_decisions, dead_letters

    with psycopg.connect(group.dsn) as connection:
        identities = dead_letters.identities(connection, dead_letters.Filter(group=group.app.name))
        decision = dead_letter_decisions.replay(connection, identities, by="tests", because="mended")
        assert not decision.refused


def test_a_discarded_command_has_no_effect(services: Services, database: str, topic_prefix: str) -> None:
    def discard(command: Increment, ctx: Context) -> None:
        if command.amount == 1:
            raise Discard("left_the_company")

    group = build(services, database, topic_prefix, discard)
    group.publish(Increment(counter="a", amount=n) for n in range(3))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 2, "discarded": 1} and group.settled(), "end")
    assert amounts(group, "a") == [0, 2]
    assert group.query("select reason from onceward.ledger where state = 'discarded'") == [("left_the_company",)]


def test_a_server_error_is_charged_to_its_command_alone(services: Services, database: str, topic_prefix: str) -> None:
    def violate(command: Increment, ctx: Context) -> None:
        if command.amount == 17:
            ctx.connection.execute("insert into only_once values (1), (1)")

    group = build(services, database, topic_prefix, violate)
    group.query("create table only_once (id int primary key)")
    group.publish(Increment(counter=f"c{n % 5}", amount=n) for n in range(50))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 49, "dead": 1} and group.settled(), "end")
    assert group.query("select reason, attempts from onceward.dead_letters") == [("constraint_violation", 1)]
    assert group.count("select count(*) from effect") == 49


def test_follow_ups_leave_with_the_effect(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", retry=fixed("300ms", attempts=2))
    def increment(command: Increment, ctx: Context) -> None:
        ctx.publish(Settle(batch=command.amount))
        if command.amount == 3:
            raise Reject("no")

    @app.handler(Settle, lane=f"{topic_prefix}settle")
    def settle(command: Settle, ctx: Context) -> None:
        ctx.connection.execute(INSERT, (str(ctx.envelope.context.causation_id), command.batch, ctx.attempt))

    group = group_of(app, services, database)
    group.query(EFFECT)
    group.relane()
    ids = group.publish((Increment(counter="a", amount=n) for n in range(5)), tenant="acme")
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.count("select count(*) from effect") == 4 and group.settled(), "follow-ups")
    found = group.query("select amount, counter from effect order by amount")
    assert found == [(n, str(ids[n])) for n in (0, 1, 2, 4)]


def test_a_handler_that_commits_is_told_so(services: Services, database: str, topic_prefix: str) -> None:
    def commit(command: Increment, ctx: Context) -> None:
        if command.amount == 1:
            ctx.connection.commit()
        if command.amount == 2:
            ctx.connection.execute("ROLLBACK")

    group = build(services, database, topic_prefix, commit)
    group.publish(Increment(counter="a", amount=n) for n in range(4))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 2, "dead": 2} and group.settled(), "end")
    errors = [row[0] for row in group.query("select error from onceward.dead_letters order by dead_at, command_id")]
    assert "commit()" in errors[0]
    assert "ROLLBACK" in errors[1]
    assert amounts(group, "a") == [0, 3]


def test_records_that_cannot_be_run_do_not_stop_the_partition(
    services: Services, database: str, topic_prefix: str
) -> None:
    group = build(services, database, topic_prefix, lambda command, ctx: None)
    lane = f"{topic_prefix}counter"
    good = group.codec.encode(Increment(counter="a", amount=1))
    head = {"type": "test.Increment", "version": "1", "attempt": "1"}
    spoiled: list[tuple[str, bytes | None, dict[str, Any], str]] = [
        ("dead", None, head, "empty_payload"),
        ("dead", b"\x01garbage", head, "bad_framing"),
        ("dead", good[:-1], head, "undecodable"),
        ("dead", good + b"x", head, "trailing_bytes"),
        ("dead", good, head | {"attempt": "many"}, "bad_header"),
        ("dead", good, head | {"type": b"\xff\xfe"}, "bad_header"),
        ("dead", good, {"version": "1"}, "missing_header"),
        ("parked", b"\0\x7f\xff\xff\xffx", head, "schema_missing"),
        ("parked", good, head | {"type": "test.Unheard"}, "unknown_type"),
        ("discarded", good, head | {"context": json.dumps({"deadline": "2020-01-01T00:00:00+00:00"})}, "deadline"),
        ("ignored", good, head | {"context": json.dumps({"group": "somebody.else"})}, ""),
    ]
    producer = Producer({"bootstrap.servers": services.bootstrap, "partitioner": "murmur2_random"})
    for number, (_, payload, found, _) in enumerate(spoiled):
        pairs = [("id", str(new_id())), *found.items()]
        producer.produce(lane, value=payload, key=f"k{number}".encode(), headers=pairs)
    producer.produce(lane, value=good, key=b"\xff\0a", headers=[*head.items()])  # no id, and a key that is not text
    producer.flush(10)
    group.publish([Increment(counter="a", amount=7)])
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: amounts(group, "a") == [7], "good command")
        eventually(lambda: not group.count("select count(*) from onceward.outbox"), "dead letters on Kafka")
    dead = sorted([reason for kind, _, _, reason in spoiled if kind == "dead"] + ["missing_header"])
    assert sorted(row[0] for row in group.query("select reason from onceward.dead_letters")) == dead
    parked = sorted(reason for kind, _, _, reason in spoiled if kind == "parked")
    assert sorted(row[0] for row in group.query("select reason from onceward.parked")) == parked
    assert group.states() == {"dead": 8, "parked": 2, "discarded": 1, "done": 1}
    assert group.query("select key, state from onceward.holds order by 1") == [("k7", "retrying"), ("k8", "retrying")]
    payloads = {
        bytes(row[0]) for row in group.query("select payload from onceward.dead_letters where payload is not null")
    }
    assert payloads == {p for kind, p, _, _ in spoiled if kind == "dead" and p is not None}
    assert committed(group, lane) == len(spoiled) + 2


def committed(group: Group, lane: str) -> int:
    from confluent_kafka import TopicPartition

    consumer = Consumer(group.settings.kafka(**{"group.id": group.app.name}))
    found = consumer.committed([TopicPartition(lane, n) for n in range(4)], 10)
    consumer.close()
    return sum(max(0, partition.offset) for partition in found)


def test_the_same_record_again_is_a_duplicate(services: Services, database: str, topic_prefix: str) -> None:
    group = build(services, database, topic_prefix, lambda command, ctx: None)
    [identity] = group.publish([Increment(counter="a", amount=1)])
    group.query("insert into onceward.outbox (id, aggregatetype, aggregateid, type, payload, topic)"
                " select id, aggregatetype, aggregateid, type, payload, topic from onceward.outbox, generate_series(1, 3)")  # fmt: skip
    with Forwarder(database, services.bootstrap) as forwarder:
        with group.running():
            eventually(lambda: len(forwarder.forwarded) == 4 and committed(group, f"{topic_prefix}counter") == 4, "4")
        group.publish([Increment(counter="b", amount=2)])
        with group.running():
            eventually(lambda: amounts(group, "b") == [2], "later command")
    assert amounts(group, "a") == [1]
    assert {found for _, found, _ in forwarder.forwarded} >= {identity}


def test_a_long_wait_does_not_hold_up_its_tier(services: Services, database: str, topic_prefix: str) -> None:
    def fail(command: Increment, ctx: Context) -> None:
        if command.counter == "slow" and ctx.attempt == 1:
            raise Retry("asked_to_wait", after="4s")
        if command.counter != "slow" and ctx.attempt < 3:
            raise Retry("not_yet")

    group = build(services, database, topic_prefix, fail)
    group.publish([Increment(counter="slow"), *(Increment(counter=f"c{n}") for n in range(8))])
    with Forwarder(database, services.bootstrap) as forwarder, group.running():
        eventually(lambda: group.count("select count(*) from effect") == 8, "eight quick ones", 3.5)
        assert not amounts(group, "slow")
        eventually(lambda: amounts(group, "slow") and group.settled(), "the slow one")
    assert group.query("select attempt from effect where counter = 'slow'") == [(2,)]
    rounds = [attempt for topic, _, attempt in forwarder.forwarded if ".retry." in topic and attempt == 2]
    assert len(rounds) > 9, "it went round its tier, as the same attempt"
    [(waited,)] = group.query(
        "select extract(epoch from max(l.updated_at) - max(a.at))::float from onceward.ledger l"
        " join onceward.attempts a using (command_id) where a.reason = 'asked_to_wait'"
    )
    assert 4.0 <= waited < 6.0
