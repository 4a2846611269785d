"""External handlers: leased, run in parallel, completed with a fence; their key order and retries are the same."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from datetime import timedelta
from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.context import Context
from onceward_consumer.failures import Reject, Retry
from onceward_consumer.policy import fixed
from onceward_schemas.errors import AppError
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.services import Services


class Gateway:
    """What happened outside, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int, str]] = []
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def enter(self, command: Increment, ctx: Any) -> None:
        with self._lock:
            self.calls.append((command.counter, command.amount, ctx.attempt, ctx.idempotency_key))
            self.running += 1
            self.most = max(self.most, self.running)

    def leave(self) -> None:
        with self._lock:
            self.running -= 1

    def of(self, counter: str) -> list[int]:
        return [amount for found, amount, _, _ in self.calls if found == counter]


def build(
    services: Services,
    dsn: str,
    prefix: str,
    gateway: Gateway,
    *,
    is_async: bool = True,
    drain_timeout: timedelta = timedelta(seconds=25),
    **given: Any,
) -> Group:
    app = App(app_name(prefix))
    rules: dict[str, Any] = {"retry": fixed("300ms", attempts=3), "concurrency": 8} | given

    def decide(command: Increment, ctx: Any) -> None:
        if command.note == "fail" and ctx.attempt < 3:
            raise Retry("busy")
        if command.note == "reject":
            raise Reject("no_such_mailbox")
        ctx.publish(Increment(counter="sent", amount=command.amount)) if command.note == "publish" else None

    if is_async:

        @app.handler(Increment, lane=f"{prefix}mail", mode="external", destination="smtp", **rules)
        async def send(command: Increment, ctx: Any) -> None:
            gateway.enter(command, ctx)
            try:
                await asyncio.sleep(30 if command.note == "hang" else 0.01)
                decide(command, ctx)
            finally:
                gateway.leave()
    else:

        @app.handler(Increment, lane=f"{prefix}mail", mode="external", destination="smtp", **rules)
        def send_blocking(command: Increment, ctx: Context) -> None:
            gateway.enter(command, ctx)
            try:
                time.sleep(0.01)
                decide(command, ctx)
            finally:
                gateway.leave()

    return group_of(app, services, dsn, drain_timeout=drain_timeout)


@pytest.mark.parametrize("is_async", [True, False])
def test_calls_run_in_parallel_and_in_order_of_key(
    services: Services, database: str, topic_prefix: str, is_async: bool
) -> None:
    gateway = Gateway()
    group = build(services, database, topic_prefix, gateway, is_async=is_async)
    ids = group.publish(Increment(counter=f"c{n % 20}", amount=n) for n in range(200))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 200} and group.settled(), "200 calls")
    assert sorted(call[1] for call in gateway.calls) == list(range(200))
    for key in range(20):
        assert gateway.of(f"c{key}") == list(range(key, 200, 20))
    assert 1 < gateway.most <= 8
    assert {call[3] for call in gateway.calls} == {str(identity) for identity in ids}


def test_a_failing_call_holds_its_key_only(services: Services, database: str, topic_prefix: str) -> None:
    gateway = Gateway()
    group = build(services, database, topic_prefix, gateway)
    group.publish(
        Increment(counter=key, amount=n, note="fail" if (key, n) == ("a", 1) else None)
        for n in range(8)
        for key in "ab"
    )
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 16} and group.settled(), "16 calls")
    assert gateway.of("a") == [0, 1, 1, 1, *range(2, 8)]
    assert gateway.of("b") == list(range(8))
    keys = {call[3] for call in gateway.calls if call[:2] == ("a", 1)}
    assert len(keys) == 1


def test_a_rejected_call_is_a_dead_letter(services: Services, database: str, topic_prefix: str) -> None:
    gateway = Gateway()
    group = build(services, database, topic_prefix, gateway)
    group.publish(Increment(counter="a", amount=n, note="reject" if n == 1 else None) for n in range(4))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 3, "dead": 1} and group.settled(), "end")
    assert gateway.of("a") == [0, 1, 2, 3]


def test_a_call_beyond_its_runtime_is_cancelled(services: Services, database: str, topic_prefix: str) -> None:
    gateway = Gateway()
    group = build(services, database, topic_prefix, gateway, max_runtime="200ms", retry=fixed("300ms", attempts=2))
    group.publish([Increment(counter="a", note="hang"), Increment(counter="a", amount=2)])
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 1, "dead": 1} and group.settled(), "end")
    assert gateway.running == 0
    assert group.query("select reason from onceward.attempts order by attempt") == [
        ("max_runtime",),
        ("attempts_exhausted",),
    ]


def test_an_external_handler_has_no_connection(services: Services, database: str, topic_prefix: str) -> None:
    seen: list[BaseException] = []
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}mail", mode="external")
    async def send(command: Increment, ctx: Any) -> None:
        try:
            ctx.connection.execute("select 1")
        except AppError as error:
            seen.append(error)

    group = group_of(app, services, database)
    group.publish([Increment(counter="a")])
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 1}, "end")
    assert "external" in str(seen[0])


def test_what_a_dead_worker_ran_is_taken_over_and_counted(services: Services, database: str, topic_prefix: str) -> None:
    gateway = Gateway()
    group = build(services, database, topic_prefix, gateway)
    ids = group.publish(Increment(counter=key, amount=n) for n in range(2) for key in "abc")
    leave_running(group, ids[0], attempt=1, lease_seconds=-1)
    leave_running(group, ids[1], attempt=3, lease_seconds=-1)
    leave_running(group, ids[2], attempt=1, lease_seconds=2)
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 5, "dead": 1} and group.settled(), "end")
    assert [call[2] for call in gateway.calls if call[0] == "a"] == [2, 1]
    assert gateway.of("b") == [1], "its attempts were used up by workers that died"
    assert group.query("select reason, attempts from onceward.dead_letters") == [("worker_lost", 3)]
    assert [call[2] for call in gateway.calls if call[0] == "c"] == [2, 1], "waited for the lease, then took over"


def leave_running(group: Group, identity: uuid.UUID, *, attempt: int, lease_seconds: float) -> None:
    incarnation = uuid.uuid4()
    group.query(
        "insert into onceward.workers (incarnation, consumer_group, host, pid, lease_until)"
        " values (%s, %s, 'gone', 1, now() + make_interval(secs => %s))",
        incarnation, group.app.name, lease_seconds,
    )  # fmt: skip
    group.query(
        "insert into onceward.ledger (command_id, consumer_group, state, attempt, incarnation, first_failed_at)"
        " values (%s, %s, 'running', %s, %s, case when %s > 1 then now() end)",
        identity, group.app.name, attempt, incarnation, attempt,
    )  # fmt: skip


def test_a_drain_costs_no_attempt(services: Services, database: str, topic_prefix: str) -> None:
    gateway = Gateway()
    group = build(services, database, topic_prefix, gateway, drain_timeout=timedelta(seconds=3))
    group.publish(Increment(counter="a", amount=n, note="hang" if n == 0 else None) for n in range(3))
    with Forwarder(database, services.bootstrap):
        with group.running():
            eventually(lambda: gateway.running == 1, "running call")
            started = time.monotonic()
        assert time.monotonic() - started < 4
        assert group.query("select distinct state, incarnation, attempt from onceward.ledger") == [("running", None, 1)]
        assert not group.count("select count(*) from onceward.workers")
        with group.running():
            eventually(lambda: len(gateway.calls) == 2, "second call")
    assert [call[2] for call in gateway.calls] == [1, 1]
    assert not group.count("select count(*) from onceward.attempts")


def test_a_fenced_worker_changes_nothing(services: Services, database: str, topic_prefix: str) -> None:
    gateway = Gateway()
    group = build(services, database, topic_prefix, gateway, max_runtime="20s")
    [identity] = group.publish([Increment(counter="a", note="hang")])
    other = uuid.uuid4()
    with Forwarder(database, services.bootstrap), group.running() as worker:
        eventually(lambda: gateway.running == 1, "running call")
        group.query("update onceward.ledger set incarnation = %s, attempt = 2 where command_id = %s", other, identity)
        loop = worker._loop
        assert loop is not None
        for runner in loop._external:
            assert runner.busy == 1
            loop._loop.call_soon_threadsafe(cancel_sleep, loop)  # type: ignore[union-attr]
        eventually(lambda: worker._buffer.records == 0, "end of the call")
    assert group.query("select state, attempt, incarnation from onceward.ledger") == [("running", 2, other)]
    assert not group.count("select count(*) from onceward.attempts")


def cancel_sleep(loop: Any) -> None:
    """End the handler's sleep as a server would that answers at last."""
    for handle in loop._loop._scheduled:
        if not handle.cancelled() and handle.when() - loop._loop.time() > 15 and "set_result" in repr(handle._callback):
            future, value = handle._args
            handle.cancel()
            future.set_result(value)
