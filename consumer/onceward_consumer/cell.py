"""The process of a cell: `python -m onceward_consumer.cell PIPE LIFE SLATE PARENT`, started by its worker only.

It imports the application, opens connections of its own, and runs what it is sent, one request after the other. Its worker
counts, decides and fetches; it ends when its worker does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import functools
import importlib
import os
import pickle
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import psycopg

from onceward_consumer.app import App
from onceward_consumer.cell_wire import (
    READY,
    TAKEN,
    Broken,
    Calling,
    CallReply,
    CallRequest,
    GroupReply,
    GroupRequest,
    Knowledge,
    Lost,
    ReleaseReply,
    ReleaseRequest,
    Setup,
    Slate,
    pack,
    plain,
    received,
    reply_of,
    sent,
)
from onceward_consumer.clocks import DatabaseClock
from onceward_consumer.connections import AsyncHandlerConnection, ConnectionLostError, HandlerConnection
from onceward_consumer.context import HandlerContext
from onceward_consumer.deaths import UNREAD
from onceward_consumer.deaths import verdict as verdict_of_deaths
from onceward_consumer.deliveries import kind_of
from onceward_consumer.drivers import AsyncDriver, Driver
from onceward_consumer.executors import LOST, script_of
from onceward_consumer.failure_outcomes import outcome_of
from onceward_consumer.failures import OverrunError
from onceward_consumer.guard import Guard
from onceward_consumer.handlers import Handler, call_within
from onceward_consumer.items import Engine, Item, prepared
from onceward_consumer.losses import SessionTimedOutError
from onceward_consumer.moods import Mood
from onceward_consumer.outcomes import Done
from onceward_consumer.redaction import describe
from onceward_consumer.release import Released, release_group
from onceward_consumer.reports import tell_guard
from onceward_consumer.script import STEERING, EscapedError, Script
from onceward_consumer.spans import span
from onceward_runtime import log, postgres
from onceward_runtime.registry import registry_client
from onceward_schemas.codec import Codec
from onceward_schemas.errors import AppError, OncewardError

_PR_SET_PDEATHSIG: Final = 1
_FIRST_TO_GO: Final = "500"
"""Where memory is short the kernel takes a cell before its worker."""
LEFT: Final = ("drafts", "run_items")
"""What an external call leaves on its item, for the worker to make durable."""


class _Clock(DatabaseClock):
    """Follows the worker's readings."""

    def follow(self, known: Knowledge) -> None:
        self.set(*known.clock)


class Server:
    """What a cell does with requests."""

    def __init__(self, setup: Setup, app: App, slate: Slate) -> None:
        self._setup = setup
        self._slate = slate
        types = sorted(app.handlers)
        codec = Codec(registry_client(setup.settings), commands=[app.handlers[name].command for name in types])
        self._clock = _Clock()
        self._engine = Engine(
            group=setup.group,
            incarnation=uuid4(),  # it leases nothing, and is nobody's other self
            worker=setup.worker,
            code_version=setup.settings.code_version,
            codec=codec,
            clock=self._clock,
            handlers={
                name: dataclasses.replace(
                    app.handlers[name], function=_noted(app.handlers[name].function, number, app.handlers[name], slate)
                )
                for number, name in enumerate(types)
            },
            ignores=app.ignores,
            reach=setup.reach,
            lock_timeout=setup.lock_timeout,
            transaction_timeout=setup.transaction_timeout,
            guard=Guard(app.dead_letters, tell_guard(setup.group)),
        )
        codec.preload()
        self._mood = Mood()
        self._connection: HandlerConnection | None = None
        self._async_connection: AsyncHandlerConnection | None = None
        self._runner = asyncio.Runner()

    def answer(self, request: Any) -> Any:
        """Carry out one request."""
        self._learn(request.known)
        try:
            match request:
                case GroupRequest():
                    return self._group(request)
                case ReleaseRequest():
                    return self._release(request)
                case CallRequest():
                    return self._call(request)
        except LOST as error:
            self._disconnect()
            return Lost(describe(error), isinstance(error, SessionTimedOutError))
        raise AssertionError(type(request).__name__)

    def _learn(self, known: Knowledge) -> None:
        engine = self._engine
        self._clock.follow(known)
        engine.deaths.of = dict(known.deaths)
        for identity, (attempt, reason, said) in known.overran.items():
            engine.given_up[identity] = attempt, OverrunError(reason, said)

    def _item(self, found: Any) -> Item:
        delivery = received(found, self._engine.handlers)
        died = self._engine.deaths.of.get(delivery.id, ())
        if len(died) >= UNREAD and delivery.envelope is not None:
            item = Item(delivery, delivery.id, f"{delivery.id.int:032x}", delivery.envelope, delivery.handler)
            item.attempt = item.asked = delivery.envelope.attempt
            item.outcome = item.given = verdict_of_deaths(died)
            return item
        return prepared(delivery, self._engine)

    def _group(self, request: GroupRequest) -> GroupReply:
        items = [self._item(each) for each in request.deliveries]
        handler = items[0].handler
        self._run(lambda: script_of(items, self._engine, self._mood), handler is not None and handler.is_async)
        self._note(items)
        return GroupReply([reply_of(item) for item in items])

    def _release(self, request: ReleaseRequest) -> ReleaseReply:
        is_async = any(
            handler.is_async for handler in self._engine.handlers.values() if kind_of(handler) == request.kind
        )
        done = self._run(lambda: self._round(request), is_async)
        self._note(done.items)
        items = [(sent(item.delivery, payload=False), reply_of(item)) for item in done.items]
        return ReleaseReply(done.keys, items, done.others)

    def _note(self, items: Sequence[Item]) -> None:
        ended = Counter(item.handler.type for item in items if item.handler and isinstance(item.outcome, Done))
        for name, count in ended.items():
            self._engine.guard.succeeded(name, count, time.monotonic())

    def _round(self, request: ReleaseRequest) -> Script[Released]:
        if request.single:
            return release_group(self._engine, request.kind, keys=1, per_key=1)
        return release_group(self._engine, request.kind, mood=self._mood)

    def _run(self, script: Callable[[], Script[Any]], is_async: bool) -> Any:
        if is_async:
            return self._runner.run(self._run_async(script))
        if self._connection is None or self._connection.closed:
            with postgres.translated():
                self._connection = HandlerConnection.connect(autocommit=True, **self._setup.connection)
        return Driver(self._connection, self._engine).run(script())

    async def _run_async(self, script: Callable[[], Script[Any]]) -> Any:
        if self._async_connection is None or self._async_connection.closed:
            with postgres.translated():
                self._async_connection = await AsyncHandlerConnection.connect(autocommit=True, **self._setup.connection)
        return await AsyncDriver(self._async_connection, self._engine).run(script())

    def _disconnect(self) -> None:
        with contextlib.suppress(psycopg.Error, ConnectionLostError):
            if self._connection is not None:
                self._connection.guarded = False
                self._connection.close()
        with contextlib.suppress(psycopg.Error, ConnectionLostError):
            if self._async_connection is not None:
                self._async_connection.guarded = False
                self._runner.run(self._async_connection.close())
        self._connection = self._async_connection = None

    def _call(self, request: CallRequest) -> CallReply:
        item = prepared(received(request.delivery, self._engine.handlers), self._engine)
        item.attempt, item.attempts_before = request.attempt, request.attempts_before
        item.first_failed_at = request.first_failed_at
        if item.outcome is None:
            self._call_handler(item)
        return CallReply(reply_of(item), {name: plain(getattr(item, name)) for name in LEFT})

    def _call_handler(self, item: Item) -> None:
        handler = item.handler
        assert handler is not None
        context = HandlerContext(item, self._engine, None)
        try:
            with span(item, self._engine):
                if handler.is_async:
                    self._runner.run(call_within(handler, item.command, context))
                else:
                    try:
                        handler.function(item.command, context)
                    except STEERING as error:
                        raise EscapedError(describe(error)) from error
            item.outcome = Done()
            self._engine.guard.succeeded(handler.type, 1, time.monotonic())
        except BaseException as error:
            for name in LEFT:
                setattr(item, name, [])
            item.outcome = outcome_of(error, item, self._engine)


def _noted(function: Callable[..., Any], number: int, handler: Handler, slate: Slate) -> Callable[..., Any]:
    """The handler's function, which writes on the slate what it is called with."""

    @contextmanager
    def noted(context: Any) -> Iterator[None]:
        found = context.items[0] if handler.mode == "batch" else context
        slate.write(Calling(found.command_id, found.attempt, number, time.perf_counter()))
        try:
            yield
        finally:
            slate.wipe()

    if handler.is_async:

        @functools.wraps(function)
        async def call(command: Any, context: Any) -> Any:
            with noted(context):
                return await function(command, context)

    else:

        @functools.wraps(function)
        def call(command: Any, context: Any) -> Any:
            with noted(context):
                return function(command, context)

    return call


def load(target: str) -> App:
    """The application of `module:attribute`.

    Raises: AppError; and whatever the module raises.
    """
    module_name, _, attribute = target.partition(":")
    found = getattr(importlib.import_module(module_name), attribute or "app", None)
    if not isinstance(found, App):
        raise AppError(f"{target} is no App.", remedy="Name it as module:attribute.")
    return found


def _bind_to(parent: int, life: int) -> None:
    """End with the worker, and leave signals to it, which are meant for the group as a whole."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the children of handlers would inherit
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch, args=(life,), name="onceward-life", daemon=True).start()


def _watch(life: int) -> None:
    """The worker holds the other end."""
    with contextlib.suppress(OSError):
        os.read(life, 1)
    os._exit(1)


def main(pipe: int, life: int, slate: int, parent: int) -> int:
    """Serve until the worker hangs up."""
    _bind_to(parent, life)
    connection = Connection(pipe)
    try:
        setup: Setup = pickle.loads(connection.recv_bytes())
        sys.path[:] = setup.path
        log.configure(setup.settings)
        server = Server(setup, load(setup.target), Slate(slate))
    except EOFError:
        return 0
    except BaseException as error:
        said = f"{error.message} {error.remedy or ''}".strip() if isinstance(error, OncewardError) else describe(error)
        connection.send_bytes(pack(Broken(said)))
        return 1
    connection.send_bytes(pack(READY))
    while True:
        try:
            request = pickle.loads(connection.recv_bytes())
            connection.send_bytes(pack(TAKEN))
        except (EOFError, OSError):
            return 0
        try:
            reply = server.answer(request)
        except BaseException as error:
            reply = Broken(describe(error))
        connection.send_bytes(pack(reply))


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:5])))
