"""What PostgreSQL refuses of one external command is that command's failure; those that share its transaction go on."""

from __future__ import annotations

import asyncio

import pytest

from onceward_consumer.app import App
from onceward_consumer.context import AsyncContext
from onceward_consumer.failures import Retry
from onceward_consumer.handlers import Order
from onceward_consumer.policy import fixed
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.raw_records import RawProducer, heads
from tests.support.services import Services

REFUSE = """
create function refuse() returns trigger language plpgsql as $$ begin
    raise data_exception using message = 'nobody takes this';
end $$
"""
NO_POISON = (
    "create trigger refuse before insert on onceward.outbox for each row"
    " when (new.aggregateid = 'poison') execute function refuse()"
)
NO_NAMES = (
    "create trigger refuse before insert on onceward.dead_letters for each row"
    " when (new.reason = 'bad_framing') execute function refuse()"
)


def build(services: Services, dsn: str, prefix: str, order: Order = "retry") -> tuple[Group, list[tuple[str, int]]]:
    app = App(app_name(prefix))
    calls: list[tuple[str, int]] = []

    @app.handler(Increment, lane=f"{prefix}mail", mode="external", order=order, retry=fixed("1s", attempts=3))
    async def send(command: Increment, ctx: AsyncContext) -> None:
        calls.append((command.counter, command.amount))
        await asyncio.sleep(0.01)
        if command.note == "fail" and ctx.attempt == 1:
            raise Retry("busy")
        if command.note is not None and command.note.startswith("publish"):
            ctx.publish(Increment(counter=command.note.split()[1]))

    group = group_of(app, services, dsn)
    group.query(REFUSE)
    return group, calls


@pytest.mark.parametrize("order", ["retry", "strict"])
def test_a_follow_up_that_is_refused_costs_only_its_command(
    services: Services, database: str, topic_prefix: str, order: Order
) -> None:
    group, calls = build(services, database, topic_prefix, order)
    group.query(NO_POISON)
    group.publish(
        Increment(counter=key, amount=n, note="publish poison" if (key, n) == ("a", 1) else None)
        for n in range(4)
        for key in "abcde"
    )
    expected = {"done": 19, "dead": 1} if order == "retry" else {"done": 17, "dead": 1, "parked": 2}
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == expected, "end of all")
    assert [n for key, n in calls if key == "a"] == ([0, 1, 2, 3] if order == "retry" else [0, 1])
    for key in "bcde":
        assert [n for other, n in calls if other == key] == [0, 1, 2, 3]
    assert group.query("select reason from onceward.dead_letters") == [("invalid_data",)]


def test_a_record_whose_dead_letter_is_refused_is_stored_without_its_headers(
    services: Services, database: str, topic_prefix: str
) -> None:
    group, calls = build(services, database, topic_prefix)
    group.query(NO_NAMES)
    producer, lane = RawProducer(services.bootstrap), f"{topic_prefix}mail"
    with group.running():
        producer.send(lane, b"a", b"garbage", heads(Increment.SCHEMA.name))
        group.publish(Increment(counter=key, amount=n) for n in range(3) for key in "ab")
        with Forwarder(database, services.bootstrap):
            eventually(lambda: group.states() == {"done": 6, "dead": 1} and group.settled(), "end of all")
    assert [n for key, n in calls if key == "a"] == [0, 1, 2]
    assert group.query("select reason, type from onceward.dead_letters") == [("unstorable", None)]


def test_the_same_holds_for_one_that_waited_behind_its_key(
    services: Services, database: str, topic_prefix: str
) -> None:
    group, calls = build(services, database, topic_prefix)
    group.query(NO_NAMES)
    producer, lane = RawProducer(services.bootstrap), f"{topic_prefix}mail"
    with Forwarder(database, services.bootstrap), group.running():
        group.publish([Increment(counter="a", amount=0, note="fail")])
        eventually(lambda: group.count("select count(*) from onceward.holds") == 1, "held key")
        producer.send(lane, b"a", b"garbage", heads(Increment.SCHEMA.name))
        group.publish([Increment(counter="a", amount=1), Increment(counter="b")])
        eventually(lambda: group.states() == {"done": 3, "dead": 1} and group.settled(), "end of all")
    assert [n for key, n in calls if key == "a"] == [0, 0, 1]
    assert group.query("select reason, type from onceward.dead_letters") == [("unstorable", None)]
