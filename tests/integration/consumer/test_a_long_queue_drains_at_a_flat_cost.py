"""Thousands of commands behind one held key run in order once its head is through, each round as quick as the first, while other
keys take their turns.

What was run before lies dead in the index for as long as somebody's transaction may still want to see it, and must not be read
again and again.
"""

from __future__ import annotations

import json
import threading
from typing import Any

import psycopg

from onceward_consumer.app import App
from onceward_consumer.context import Context
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed
from onceward_runtime.sql import query
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

LONG = 20_000
OTHERS = [f"other{number}" for number in range(20)]
EACH = 5
EFFECT = "create table effect (seq bigint generated always as identity, counter text, amount int)"
INSERT = "insert into effect (counter, amount) values (%s, %s)"


def test_a_long_queue_drains_in_order_at_a_flat_cost(services: Services, database: str, topic_prefix: str) -> None:
    mended = threading.Event()
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter", retry=fixed("1s", attempts=1000))
    def increment(command: Increment, ctx: Context) -> None:
        if command.amount == 0 and not mended.is_set():
            raise Retry("not_yet")
        ctx.connection.execute(INSERT, (command.counter, command.amount))

    group = group_of(app, services, database)
    group.query(EFFECT)
    group.publish(Increment(counter="long", amount=n) for n in range(LONG))
    group.publish(Increment(counter=key, amount=n) for n in range(EACH) for key in OTHERS)
    waiting = LONG - 1 + len(OTHERS) * (EACH - 1)
    with psycopg.connect(database) as onlooker, Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.count("select count(*) from onceward.parked") == waiting, "parked followers", 120)
        onlooker.execute("set transaction isolation level repeatable read")
        onlooker.execute("select count(*) from effect")  # from here on nothing that is deleted may be cleaned away
        mended.set()
        pages = {}
        for part in (0.1, 0.9):
            eventually(lambda part=part: done(group) >= LONG * part, f"{part} of the long queue", 120)  # type: ignore[misc]
            pages[part] = pages_read(group)
        eventually(group.settled, "end of it", 120)
        onlooker.rollback()
    rows = group.query("select counter, amount from effect order by seq")
    for key, count in [("long", LONG), *((other, EACH) for other in OTHERS)]:
        assert [amount for counter, amount in rows if counter == key] == list(range(count)), key
    others_end = max(place for place, (counter, _) in enumerate(rows) if counter != "long")
    assert others_end < LONG / 2, "they need not wait for the end of the long queue"
    assert pages[0.9] < pages[0.1] * 1.5 + 50, "a round reads its own followers, and not those before them"


def done(group: Group) -> int:
    return group.count("select count(*) from effect where counter = 'long'")


def pages_read(group: Group) -> int:
    """How many pages a round reads to find the next followers of the long queue, asked as a round would."""
    [(lane, key, drained)] = group.query(
        "select lane, key, drained from onceward.holds h"
        " order by (select count(*) from onceward.parked p where p.key = h.key) desc limit 1"
    )
    values: dict[str, Any] = {"group": group.app.name, "lanes": [lane], "keys": [key], "drained": [drained]}
    values |= {"per_key": 201, "most_bytes": 8 << 20}
    with psycopg.connect(group.dsn) as connection:
        explain = "explain (analyze, buffers, format json) " + query("onceward_consumer", "release_parked")
        [[answer]] = connection.execute(explain, values).fetchall()
    plan = (answer if isinstance(answer, list) else json.loads(answer))[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
