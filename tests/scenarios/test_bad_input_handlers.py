"""Handlers that misbehave, in every mode: they raise what nobody raises, end the engine's transaction, lose its connection,
block, or return something.

Promised: the worker lives, such a command is retried or becomes a dead letter with a reason code by its own policy and leaves
no effect, and the good command behind it in its key takes effect, once.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

import psycopg
import pytest

from onceward_consumer.app import App
from onceward_consumer.failures import Discard, Reject, Retry
from onceward_consumer.policy import fixed
from onceward_consumer.worker import Worker
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, app_name, eventually, group_of
from tests.support.databases import fresh_database
from tests.support.services import Services
from tests.support.topics import delete_topics

ATTEMPTS = 2
EXHAUSTED = "attempts_exhausted"
INSERT = "insert into effect (id, amount) values (%s, %s)"


class SilentError(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


class DeadlyError(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class NumberError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]  # noqa: PLE0307


def recurse() -> None:
    recurse()


def raises(error: BaseException | type[BaseException]) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


def ignoring(act: Callable[[], None], ctx: Any) -> None:
    act()


RAISED: dict[str, tuple[Callable[[], None], str]] = {
    "SystemExit": (raises(SystemExit(1)), EXHAUSTED),
    "KeyboardInterrupt": (raises(KeyboardInterrupt), EXHAUSTED),
    "GeneratorExit": (raises(GeneratorExit), EXHAUSTED),
    "CancelledError": (raises(asyncio.CancelledError), EXHAUSTED),
    "StopIteration": (raises(StopIteration(1)), EXHAUSTED),
    "StopAsyncIteration": (raises(StopAsyncIteration), EXHAUSTED),
    "a group of SystemExit": (raises(BaseExceptionGroup("many", [SystemExit(1)])), EXHAUSTED),
    "an endless recursion": (recurse, "recursion_error"),
    "a message of 5 MB": (raises(RuntimeError("x" * 5_000_000)), EXHAUSTED),
    "a message with a NUL": (raises(RuntimeError("a\0b")), EXHAUSTED),
    "a message with half a surrogate pair": (raises(RuntimeError("a\ud800b")), EXHAUSTED),
    "a message of bytes": (raises(RuntimeError(b"\xff\xfe")), EXHAUSTED),
    "an error whose message cannot be read": (raises(SilentError()), EXHAUSTED),
    "an error whose message ends the process": (raises(DeadlyError()), EXHAUSTED),
    "an error whose message is a number": (raises(NumberError()), EXHAUSTED),
    "a rejection with a NUL": (raises(Reject("no\0way")), "noway"),
    "a rejection with half a surrogate pair": (raises(Reject("no\ud800way")), "no?way"),
    "a rejection of 1 MB": (raises(Reject("n" * 1_000_000)), "n" * 199 + "…"),
    "a rejection that is no text": (raises(Reject(404)), "404"),  # type: ignore[arg-type]
    "a rejection without a word": (raises(Reject("")), "rejected"),
    "a retry with a NUL": (raises(Retry("la\0ter")), EXHAUSTED),
}
MISUSE: dict[str, Callable[[Any], Any]] = {
    "commits": lambda ctx: ctx.connection.commit(),
    "rolls back": lambda ctx: ctx.connection.rollback(),
    "closes the connection": lambda ctx: ctx.connection.close(),
    "runs COMMIT": lambda ctx: ctx.connection.execute("commit"),
    "runs ROLLBACK behind a comment": lambda ctx: ctx.connection.execute("/* x */ rollback"),
}
EVERY_MODE = pytest.mark.parametrize("bench", ["sync", "async", "external", "external async"], indirect=True)
TRANSACTIONAL = pytest.mark.parametrize("bench", ["sync", "async"], indirect=True)


@dataclass
class Bench:
    """A worker whose handler does what a test has put under the command's note."""

    group: Group
    worker: Worker
    mode: str
    acts: dict[str, Callable[[Any], Any]]
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def publish(self, note: str | None = None, key: str = "k") -> tuple[UUID, int]:
        amount = next(self.numbers)
        [identity] = self.group.publish([Increment(counter=key, amount=amount, note=note)])
        return identity, amount

    def state(self, identity: UUID) -> str | None:
        rows = self.group.query("select state from onceward.ledger where command_id = %s", identity)
        return str(rows[0][0]) if rows else None

    def effects(self, amount: int) -> int:
        return self.group.count("select count(*) from effect where amount = %s", amount)

    def letter(self, identity: UUID) -> tuple[str, str, int]:
        eventually(lambda: self.state(identity) == "dead", "dead letter", 20)
        [row] = self.group.query(
            "select reason, error, attempts from onceward.dead_letters where command_id = %s", identity
        )
        return str(row[0]), str(row[1]), int(row[2])

    def goes_on(self, good: int) -> None:
        eventually(lambda: self.effects(good) == 1, "effect of the command behind it", 20)
        eventually(self.group.settled, "end of all that waits", 20)
        assert self.worker.ready()


@pytest.fixture(scope="module")
def bench(request: pytest.FixtureRequest, services: Services, migrated_template: str) -> Iterator[Bench]:
    prefix, acts = app_name("mad"), dict[str, Callable[[Any], Any]]()
    with ExitStack() as opened:
        dsn = opened.enter_context(fresh_database(services.dsn, migrated_template))
        opened.callback(delete_topics, services.bootstrap, prefix)
        app = App(prefix)
        options: dict[str, Any] = {"lane": f"{prefix}.lane", "retry": fixed("100ms", attempts=ATTEMPTS)}
        _declare(app, request.param, options, acts, dsn)
        group = group_of(app, services, dsn, partitions=1)
        group.query("create table effect (id uuid, amount int)")
        opened.enter_context(Forwarder(dsn, services.bootstrap))
        yield Bench(group, opened.enter_context(group.running()), request.param, acts)


def _declare(app: App, mode: str, options: dict[str, Any], acts: dict[str, Callable[[Any], Any]], dsn: str) -> None:
    def outside(command: Increment, ctx: Any) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(INSERT, (ctx.command_id, command.amount))

    if mode == "sync":

        @app.handler(Increment, **options)
        def increment(command: Increment, ctx: Any) -> Any:
            ctx.connection.execute(INSERT, (ctx.command_id, command.amount))
            return acts[command.note](ctx) if command.note else None

    elif mode == "async":

        @app.handler(Increment, **options)
        async def increment_async(command: Increment, ctx: Any) -> Any:
            await ctx.connection.execute(INSERT, (ctx.command_id, command.amount))
            result = acts[command.note](ctx) if command.note else None
            return await result if asyncio.iscoroutine(result) else result

    elif mode == "external":

        @app.handler(Increment, mode="external", **options)
        def increment_outside(command: Increment, ctx: Any) -> Any:
            result = acts[command.note](ctx) if command.note else None
            outside(command, ctx)
            return result

    else:

        @app.handler(Increment, mode="external", **options)
        async def increment_outside_async(command: Increment, ctx: Any) -> Any:
            result = acts[command.note](ctx) if command.note else None
            outside(command, ctx)
            return result


@EVERY_MODE
def test_whatever_a_handler_raises_costs_its_own_command_only(bench: Bench) -> None:
    bad, good = {}, {}
    for what, (act, _) in RAISED.items():
        bench.acts[what] = functools.partial(ignoring, act)
        bad[what] = bench.publish(what, key=what)
        good[what] = bench.publish(key=what)
    found = {what: bench.letter(identity) for what, (identity, _) in bad.items()}
    assert {what: reason for what, (reason, _, _) in found.items()} == {what: r for what, (_, r) in RAISED.items()}
    assert {w: a for w, (r, _, a) in found.items() if a != (ATTEMPTS if r == EXHAUSTED else 1)} == {}
    assert all(len(error) <= 500 for _, error, _ in found.values())
    for _, amount in good.values():
        bench.goes_on(amount)
    assert not [what for what, (_, amount) in bad.items() if bench.effects(amount)]


@EVERY_MODE
@pytest.mark.parametrize("reason", ["gone\0", "gone\ud800", 7, ""])
def test_a_discard_for_an_odd_reason_is_a_discard(bench: Bench, reason: Any) -> None:
    bench.acts["discard"] = lambda ctx: raises(Discard(reason))()
    bad, amount = bench.publish("discard")
    _, good = bench.publish()
    bench.goes_on(good)
    assert bench.state(bad) == "discarded"
    assert not bench.effects(amount)


@TRANSACTIONAL
@pytest.mark.parametrize("what", MISUSE)
def test_a_handler_that_ends_the_transaction_is_told_so(bench: Bench, what: str) -> None:
    bench.acts[what] = MISUSE[what]
    bad, amount = bench.publish(what)
    _, good = bench.publish()
    reason, error, attempts = bench.letter(bad)
    assert (reason, attempts) == ("transaction_misuse", 1)
    assert "ctx.connection" in error
    bench.goes_on(good)
    assert not bench.effects(amount)


@TRANSACTIONAL
def test_a_handler_that_loses_its_connection_each_time_is_given_up(bench: Bench) -> None:
    bench.acts["suicide"] = lambda ctx: ctx.connection.execute("select pg_terminate_backend(pg_backend_pid())")
    bad, amount = bench.publish("suicide")
    _, good = bench.publish()
    _, other = bench.publish(key="other")
    reason, _, attempts = bench.letter(bad)
    assert (reason, attempts) == (EXHAUSTED, ATTEMPTS)
    bench.goes_on(good)
    assert bench.effects(other) == 1
    assert not bench.effects(amount)


@TRANSACTIONAL
def test_a_connection_closed_behind_the_guard_is_given_up_too(bench: Bench) -> None:
    bench.acts["finish"] = lambda ctx: ctx.connection.pgconn.finish()
    bad, amount = bench.publish("finish")
    _, good = bench.publish()
    assert bench.letter(bad)[0] == EXHAUSTED
    bench.goes_on(good)
    assert not bench.effects(amount)


@TRANSACTIONAL
def test_an_error_of_the_server_that_a_handler_swallows_is_not_taken_for_success(bench: Bench) -> None:

    def swallow(ctx: Any) -> None:
        try:
            ctx.connection.execute("select 1/0").fetchone()
        except (psycopg.Error, AttributeError):  # AttributeError: awaited nowhere
            return

    async def swallow_async(ctx: Any) -> None:
        try:
            await (await ctx.connection.execute("select 1/0")).fetchone()
        except psycopg.Error:
            return

    bench.acts["swallow"] = swallow_async if bench.mode == "async" else swallow
    bad, amount = bench.publish("swallow")
    _, good = bench.publish()
    assert bench.letter(bad)[0]
    bench.goes_on(good)
    assert not bench.effects(amount)


@EVERY_MODE
def test_what_a_handler_returns_does_not_matter(bench: Bench) -> None:
    bench.acts["returns"] = lambda ctx: {"some": ["thing", b"\0"]}
    _, amount = bench.publish("returns")
    bench.goes_on(amount)


@EVERY_MODE
def test_a_handler_that_blocks_is_waited_for(bench: Bench) -> None:
    bench.acts["blocks"] = lambda ctx: time.sleep(0.7)
    _, amount = bench.publish("blocks")
    _, good = bench.publish()
    bench.goes_on(good)
    assert bench.effects(amount) == 1
