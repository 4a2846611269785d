"""While a destination is away it is called a few times only; nothing is given up, and all goes on in order afterwards."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from typing import Any

from onceward_consumer.app import App
from onceward_consumer.breakers import Breaker
from onceward_consumer.policy import fixed
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services

KEYS, EACH, OUTAGE_SECONDS = 40, 10, 4.0


class Gateway:
    """Somebody else's service: away for a while, and with a list of what it did."""

    def __init__(self) -> None:
        self.done: list[tuple[str, int]] = []
        self.refused: list[float] = []
        self.away = threading.Event()
        self._lock = threading.Lock()

    def call(self, counter: str, amount: int) -> None:
        with self._lock:
            if self.away.is_set():
                self.refused.append(time.monotonic())
                raise ConnectionError("refused")
            self.done.append((counter, amount))

    def of(self, counter: str) -> list[int]:
        return [amount for found, amount in self.done if found == counter]


def build(services: Services, dsn: str, prefix: str, gateway: Gateway, **limit: Any) -> Group:
    app = App(app_name(prefix), retry=fixed("300ms", attempts=4))
    app.limit("destination:smtp", **limit)

    @app.handler(Increment, lane=f"{prefix}mail", mode="external", destination="smtp", concurrency=8)
    def send(command: Increment, ctx: Any) -> None:
        time.sleep(0.002)
        gateway.call(command.counter, command.amount)

    return group_of(app, services, dsn, partitions=6)


def test_a_few_calls_find_out_and_all_goes_on_in_order(services: Services, database: str, topic_prefix: str) -> None:
    gateway = Gateway()
    group = build(
        services, database, topic_prefix, gateway, breaker=Breaker(failures=5, open_for="500ms", longest="1s")
    )
    commands = [Increment(counter=f"c{n}", amount=m) for m in range(EACH) for n in range(KEYS)]
    with (
        Forwarder(database, services.bootstrap),
        group.running(threads=1),
        group.running(threads=1),
        group.running(threads=1),
    ):
        group.publish(commands[:40])
        eventually(lambda: len(gateway.done) >= 20, "calls before the outage")
        gateway.away.set()
        group.publish(commands[40:])
        time.sleep(OUTAGE_SECONDS)
        gateway.away.clear()
        back_at = time.monotonic()
        eventually(lambda: len(gateway.done) == len(commands) and group.settled(), "all effects")
    assert group.states() == {"done": len(commands)}, "no dead letter"
    for n in range(KEYS):
        assert gateway.of(f"c{n}") == list(range(EACH)), "once each, in order"
    assert gateway.refused, "it was called while it was away"
    in_flight, probes = 3 * 8 + 5, 10
    assert len(gateway.refused) <= in_flight + probes
    assert all(at < back_at for at in gateway.refused)
    assert group.query("select count(*) from onceward.attempts")[0][0] == len(gateway.refused)


def test_one_call_at_a_time_probes_and_other_destinations_go_on(
    services: Services, database: str, topic_prefix: str
) -> None:
    """The destination hangs; each call ends after its max_runtime of 200 ms."""
    hangs = threading.Event()
    hung: list[tuple[float, float]] = []
    mails: list[int] = []
    texts: list[int] = []
    app = App(app_name(topic_prefix), retry=fixed("300ms", attempts=6))
    app.limit("destination:smtp", breaker=Breaker(failures=4, open_for="300ms", longest="300ms", successes=2))

    @app.handler(
        Increment,
        lane=f"{topic_prefix}mail",
        mode="external",
        destination="smtp",
        concurrency=6,
        max_runtime="200ms",
    )
    async def mail(command: Increment, ctx: Any) -> None:
        started = time.monotonic()
        try:
            if hangs.is_set():
                await asyncio.sleep(60)
        finally:
            if time.monotonic() - started > 0.1:
                hung.append((started, time.monotonic()))
        mails.append(command.amount)

    @app.handler(Settle, lane=f"{topic_prefix}mail", mode="external", destination="sms")
    async def text(command: Settle, ctx: Any) -> None:
        texts.append(command.batch)

    group = group_of(app, services, database)
    hangs.set()
    with Forwarder(database, services.bootstrap), group.running(), group.running():
        group.publish(Increment(counter=f"c{n}", amount=n) for n in range(100))
        eventually(lambda: len(hung) >= 14, "probes")
        group.publish(Settle(batch=n) for n in range(50))
        eventually(lambda: len(texts) == 50, "calls of the other destination")
        assert mails == []
        hangs.clear()
        eventually(lambda: len(mails) == 100 and group.settled(), "all effects")
    assert sorted(mails) == list(range(100))
    hung.sort()
    at_first = 2 * 6  # what both had under way when the first failed
    probes = hung[at_first:]
    assert probes
    for (_, ended), (started, _) in itertools.pairwise(probes):
        assert started >= ended, "never two at a time"
