"""A worker process's service: joins the group, runs the app's handlers, and leaves without losing anything."""

from __future__ import annotations

import functools
import os
import re
import socket
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal

from onceward_consumer import garbage, topics
from onceward_consumer.app import App
from onceward_consumer.buffer import Buffer
from onceward_consumer.cell_calls import CellCalls
from onceward_consumer.cell_runner import CellRunners
from onceward_consumer.cell_wire import Setup
from onceward_consumer.cells import Cells
from onceward_consumer.clocks import DatabaseClock
from onceward_consumer.connections import AsyncHandlerConnection, HandlerConnection
from onceward_consumer.crew import Crew
from onceward_consumer.event_loop import LoopThread
from onceward_consumer.executors import ThreadRunner, kinds_of
from onceward_consumer.gauges import Gauges, Load
from onceward_consumer.guard import Guard
from onceward_consumer.heartbeat import Heartbeat
from onceward_consumer.housekeeping import RETENTION
from onceward_consumer.items import Engine
from onceward_consumer.lanes import Run
from onceward_consumer.limiter import Limiter
from onceward_consumer.limits import declared_limits
from onceward_consumer.limits_keeper import LimitsKeeper
from onceward_consumer.moods import Mood
from onceward_consumer.poller import Poller
from onceward_consumer.release import Place, Wakeups
from onceward_consumer.reports import tell_guard
from onceward_consumer.tenures import Marks, TopicIds
from onceward_consumer.turns import kept_runners
from onceward_runtime import events, kafka, log, migrate, postgres
from onceward_runtime.options import check_duration, check_whole
from onceward_runtime.registry import registry_client
from onceward_runtime.settings import Settings
from onceward_schemas import topics as topic_names
from onceward_schemas.codec import Codec
from onceward_schemas.errors import SettingsError
from onceward_schemas.registry import Registry

_STALL_SECONDS: Final = 60.0
_UNASSIGNED_SECONDS: Final = 15.0
_SHORTEST_LEASE: Final = timedelta(seconds=4)
"""It is renewed four times in its length, and the heartbeat turns once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker runs; the defaults suit most."""

    threads: int = 4
    """Connections that run synchronous handlers. Defaults to 4."""
    tasks: int = 4
    """Connections that run asynchronous transactional handlers. Defaults to 4."""
    processes: int = min(os.cpu_count() or 1, 8)
    """Child processes that run transactional handlers, and again that many for calls of external ones; started when first
    needed. Defaults to the number of cores, 8 at most."""
    group_size: int = 100
    """Commands in one transaction at most; 1 turns grouping off. Defaults to 100."""
    buffered_records: int = 10_000
    """Records fetched and not finished at most. Defaults to 10,000."""
    buffered_bytes: int = 64 << 20
    """The same in bytes. Defaults to 64 MiB."""
    lease: timedelta = timedelta(seconds=15)
    """A worker that was silent for so long is dead to the others. Defaults to 15 s."""
    reach: timedelta = timedelta(days=30)
    """A command that the ledger does not know and that is older than this is not run. At most 30 days, for which
    housekeeping keeps the ledger. Defaults to 30 days."""
    lock_timeout: timedelta = timedelta(seconds=1)
    """How long a group waits for a row that somebody else has locked. Defaults to 1 s."""
    transaction_timeout: timedelta = timedelta(seconds=60)
    """After this PostgreSQL ends a transaction and its session, so that a frozen worker frees its keys. Defaults to 60 s."""
    idle_timeout: timedelta = timedelta(seconds=30)
    """The same for a transaction in which nothing happens. Defaults to 30 s."""
    session_timeout: timedelta = timedelta(seconds=10)
    """After this the broker gives a silent worker's partitions to others. Defaults to 10 s."""
    blocked_after: timedelta = timedelta(seconds=0.5)
    """An asynchronous handler that holds up the event loop for so long is named in the log. Defaults to 0.5 s."""
    revoke_wait: timedelta = timedelta(seconds=2)
    """How long partitions that go to another worker are kept for what runs of them, so that it need not be looked at
    again there. Defaults to 2 s."""
    protocol: Literal["classic", "consumer"] | None = None
    """How the group agrees on who has what: `classic` (cooperative-sticky), or `consumer` (KIP-848, from Kafka 4.0 on), where
    the broker decides and knows the session time-out. All workers of a group use the same. Defaults to the setting."""
    instance: str | None = None
    """A name that this worker keeps over restarts: whoever comes back within the session time-out gets its partitions back
    at once, without a rebalance (static membership). Defaults to none."""
    kafka: Mapping[str, Any] | None = None
    """More librdkafka settings for the consumer. Defaults to none."""

    def __post_init__(self) -> None:
        for name in ("threads", "tasks", "processes", "group_size", "buffered_records", "buffered_bytes"):
            check_whole(name, getattr(self, name))
        for name in ("reach", "lock_timeout", "transaction_timeout", "idle_timeout", "session_timeout"):
            check_duration(name, getattr(self, name))
        check_duration("blocked_after", self.blocked_after)
        if self.revoke_wait != timedelta(0):
            check_duration("revoke_wait", self.revoke_wait)
        if self.protocol not in (None, "classic", "consumer"):
            raise SettingsError(f"protocol is {self.protocol!r:.40}.", remedy="Pass classic or consumer.")
        check_duration("lease", self.lease, _SHORTEST_LEASE)
        if self.instance == "":
            raise SettingsError("instance is empty.", remedy="Pass a name that no other worker has, or leave it out.")
        if self.reach > RETENTION:
            raise SettingsError(
                f"reach is {self.reach}; the ledger is kept for {RETENTION.days} days.", remedy="Pass less, or nothing."
            )


class Worker:
    """The service that `onceward worker` runs."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        options: WorkerOptions | None = None,
        *,
        registry: Registry | None = None,
        cells: str | None = None,
    ) -> None:
        """`cells` is the name by which child processes import the app, `module:attribute`. They use the settings' registry.

        Without it there can be no handler with executor="process", and what killed a worker before is run in threads again.
        """
        self.name = f"worker {app.name}"
        self._app = app
        self._settings = settings
        self._options = options or WorkerOptions()
        host, pid = socket.gethostname(), os.getpid()
        self.incarnation = uuid.uuid4()
        codec = Codec(registry or registry_client(settings), commands=[h.command for h in app.handlers.values()])
        self._engine = Engine(
            group=app.name,
            incarnation=self.incarnation,
            worker=f"{host}/{pid}",
            code_version=settings.code_version,
            codec=codec,
            clock=DatabaseClock(),
            handlers=dict(app.handlers),
            ignores=app.ignores,
            reach=self._options.reach,
            lock_timeout=self._options.lock_timeout,
            transaction_timeout=self._options.transaction_timeout,
            limiter=(limiter := Limiter(str(self.incarnation))),
            guard=Guard(app.dead_letters, tell_guard(app.name)),
        )
        self._kinds = kinds_of(self._engine)
        self._wakeups = Wakeups(self._kinds)
        self._mood = Mood()
        self._buffer = Buffer(
            most_records=self._options.buffered_records,
            most_bytes=self._options.buffered_bytes,
            runners=self._options.threads,
            lanes=app.lane_rules,
            narrow={h.kind: h.runners for h in app.handlers.values() if h.runners is not None},
        )
        self._kept = {
            False: kept_runners(app.lane_rules, lanes_served(app, is_async=False), self._options.threads, "--threads"),
            True: kept_runners(app.lane_rules, lanes_served(app, is_async=True), self._options.tasks, "--tasks"),
        }
        self._wakeups.listen(self._buffer.poke)
        declared = declared_limits(app.limits, app.handlers.values())
        self._limits = LimitsKeeper(settings, self._engine, limiter, declared, self._buffer, self._wakeups)
        self._cells = Cells(self._setup(cells), self._engine)
        self._cell_calls = CellCalls(self._cells, self._engine, self._options.processes)
        self._cell_runners = CellRunners(
            self._options.processes,
            engine=self._engine,
            buffer=self._buffer,
            cells=self._cells,
            wakeups=self._wakeups,
            group_size=self._options.group_size,
        )
        self._crew = Crew(
            self._options.threads, self._runner, engine=self._engine, open_=self.open, wakeups=self._wakeups
        )
        self._loop: LoopThread | None = None
        self._poller: Poller | None = None
        self._heartbeat = Heartbeat(
            self._engine,
            settings,
            self._options.lease,
            self._wakeups,
            host=host,
            pid=pid,
            gauges=Gauges(
                app.name,
                self._buffer,
                ahead=lambda: self._poller.ahead() if self._poller is not None else {},
                runners=self._loads,
            ),
            on_death=functools.partial(self._cells.be_wary, 60.0),
        )
        self._wakeups.place = self._place_of_followers
        self._started_at = time.monotonic()
        self._stopped = threading.Event()
        self._stopping = False

    def start(self) -> None:
        """Check what the worker needs, register it and join the group.

        Raises: AppError, DatabaseError, BrokerError, SchemaMissingError, RegistryUnavailableError: each says what to do.
        """
        topics.require_handlers(self._app)
        self._app.require_lanes()
        migrate.check(self._settings)
        subscribed = topics.check(self._app, self._settings)
        self._engine.codec.preload()
        self._cells.check()
        self._heartbeat.start()
        log.emit(
            events.WORKER_REGISTERED,
            incarnation=self.incarnation,
            group=self._app.name,
            host=socket.gethostname(),
            pid=os.getpid(),
        )
        garbage.search_less()
        self._limits.start()
        self._crew.start()
        self._cell_runners.start()
        here = [handler for handler in self._app.handlers.values() if handler.executor is None]
        if any(handler.is_async for handler in here) or any(h.mode == "external" for h in self._app.handlers.values()):
            self._loop = LoopThread(
                self._engine,
                self._buffer,
                self._wakeups,
                self._mood,
                open_=self.open_async,
                tasks=self._options.tasks,
                kept=self._kept[True],
                group_size=self._options.group_size,
                leased=lambda: self._heartbeat.healthy,
                blocked_after=self._options.blocked_after,
                cell_calls=self._cell_calls,
            )
            self._loop.start()
        self._poller = Poller(
            self._consumer_config(),
            group=self._app.name,
            topics=lanes_of(self._app, subscribed),
            handlers=self._engine.handlers,
            buffer=self._buffer,
            clock=self._engine.clock,
            topic_ids=TopicIds(kafka.admin(self._settings)),
            ignores=self._engine.ignores,
            revoke_wait=self._options.revoke_wait,
            marks=Marks(self.incarnation),
            wary=self._cells.told_possible,
        )
        self._poller.start()
        self._wakeups.set()

    def stop(self) -> None:
        """Stop fetching, finish what runs within the drain time-out, commit, and leave the group."""
        if self._stopping:
            self._stopped.wait(self._settings.drain_timeout.total_seconds())
            return
        self._stopping = True
        started = time.monotonic()
        until = started + self._settings.drain_timeout.total_seconds()
        log.emit(events.WORKER_DRAINING, in_flight=self._in_flight(), buffered=self._buffer.records)
        self._heartbeat.drain()
        self._buffer.close()
        self._crew.stop()
        self._cell_runners.stop()
        self._cell_calls.stop()
        if self._poller is not None:
            self._poller.stop(settle=functools.partial(self._settle, until - 2.0), timeout=until - time.monotonic())
        else:
            self._settle(until - 2.0)
        self._limits.stop()
        self._heartbeat.stop(keep_lease=self._loop is not None and self._loop.calling)
        self._cells.close()
        self._stopped.set()
        log.emit(events.WORKER_DRAINED, seconds=time.monotonic() - started, unfinished=self._in_flight())

    def _settle(self, until: float) -> None:
        """Wait for the runners. In the poller's thread: the broker does not take that for death within its time-outs."""
        if self._loop is not None:
            self._loop.stop(until - time.monotonic())
        self._crew.join(until - time.monotonic())
        self._cell_runners.join(until - time.monotonic())
        self._cells.close()
        self._cell_runners.join(1.0)

    def _in_flight(self) -> int:
        return self._crew.busy + self._cell_runners.busy + (self._loop.busy if self._loop is not None else 0)

    def alive(self) -> bool:
        """Whether every loop makes progress, or waits for a database or broker that is away."""
        if self._stopping or self._poller is None:
            return True
        now = time.monotonic()
        if not self._poller.running or now - self._poller.turned_at > _STALL_SECONDS:
            return False
        if self._crew.failures() or self._cell_runners.failures():
            return False
        if self._heartbeat.failure is not None:
            return False
        loop = self._loop
        return loop is None or (loop.running and loop.silent_seconds <= _STALL_SECONDS and not loop.failures())

    def ready(self) -> bool:
        """Whether the group has given it its share and the database answers."""
        return (
            not self._stopping
            and self._poller is not None
            and self._poller.assigned
            and self.alive()
            and self._heartbeat.healthy
            and not self._crew.lost
            and not self._cell_runners.lost
            and not (self._loop is not None and self._loop.lost)
        )

    @property
    def ended(self) -> bool:
        """Whether a loop died although nobody stopped the worker."""
        return self._poller is not None and not self._stopping and not self.alive() and self.error is not None

    @property
    def error(self) -> BaseException | None:
        """What a loop died of."""
        failures: list[BaseException | None] = [*self._crew.failures(), *self._cell_runners.failures()]
        failures.append(self._heartbeat.failure)
        if self._poller is not None:
            failures.append(self._poller.failure)
        if self._loop is not None:
            failures += self._loop.failures()
        return next((failure for failure in failures if failure is not None), None)

    def _loads(self) -> dict[str, Load]:
        crew = self._crew
        found = {"thread": Load(crew.size, crew.busy, crew.abandoned)} if "sync" in self._kinds else {}
        return found | (self._loop.loads() if self._loop is not None else {})

    def _runner(self, name: str, runs: Sequence[Run], place: int) -> ThreadRunner:
        return ThreadRunner(
            name,
            engine=self._engine,
            buffer=self._buffer,
            open_=self.open,
            wakeups=self._wakeups,
            mood=self._mood,
            most=self._options.group_size,
            runs=runs,
            only=self._kept[False][place],
        )

    def _place_of_followers(self) -> Place:
        """In cells while the group has lost a worker lately, for one of them may be why; nowhere until that is known."""
        if self._cells.wary:
            return "cells"
        assigned = self._poller is not None and self._poller.assigned
        new = time.monotonic() - self._started_at < _UNASSIGNED_SECONDS
        return "nowhere" if self._cells.possible and new and not assigned else "here"

    def _setup(self, target: str | None) -> Setup | None:
        if target is None:
            return None
        return Setup(
            target=target,
            path=list(sys.path),
            settings=self._settings,
            connection=self._parameters(),
            group=self._engine.group,
            worker=self._engine.worker,
            reach=self._engine.reach,
            lock_timeout=self._engine.lock_timeout,
            transaction_timeout=self._engine.transaction_timeout,
        )

    def open(self) -> HandlerConnection:
        """A connection for a runner."""
        with postgres.translated():
            return HandlerConnection.connect(autocommit=True, **self._parameters())

    async def open_async(self) -> AsyncHandlerConnection:
        """A connection for a task."""
        with postgres.translated():
            return await AsyncHandlerConnection.connect(autocommit=True, **self._parameters())

    def _parameters(self) -> dict[str, Any]:
        limits = postgres.SessionLimits(
            lock_timeout=self._options.lock_timeout,
            transaction_timeout=self._options.transaction_timeout,
            idle_in_transaction_session_timeout=self._options.idle_timeout,
            client_connection_check_interval=timedelta(seconds=5),
        )
        return postgres.parameters_of(
            self._settings, f"onceward worker {self._app.name}", limits, timedelta(seconds=10)
        )

    def _consumer_config(self) -> dict[str, Any]:
        options = self._options
        session = round(options.session_timeout.total_seconds() * 1000)
        return kafka.consumer_config(
            self._settings,
            self._app.name,
            protocol=options.protocol or self._settings.kafka_group_protocol,
            session_timeout=options.session_timeout,
            more={
                "max.poll.interval.ms": max(300_000, session),
                "auto.offset.reset": "error",  # where to begin is never left to the client
                "topic.metadata.refresh.interval.ms": 10_000,
                "fetch.wait.max.ms": 50,
                "fetch.queue.backoff.ms": 20,
                "queued.min.messages": 20_000,
                "queued.max.messages.kbytes": 16_384,
                "client.id": f"onceward-{self._app.name}-{self._engine.worker}",
            }
            | ({"group.instance.id": options.instance} if options.instance is not None else {})
            | dict(options.kafka or {}),
        )


def lanes_served(app: App, *, is_async: bool) -> set[str]:
    """The lanes with handlers that the worker's threads run, or its tasks."""
    return {
        handler.lane
        for handler in app.handlers.values()
        if handler.mode != "external" and handler.executor is None and handler.is_async == is_async
    }


def lanes_of(app: App, subscribed: tuple[str, ...]) -> dict[str, tuple[str, timedelta | None]]:
    """For each topic its lane, and its delay where it is a tier; tiers that no policy names any more included."""
    result: dict[str, tuple[str, timedelta | None]] = {lane: (lane, None) for lane in app.lanes}
    for lane in app.lanes:
        for delay in app.tiers(lane):
            result[topic_names.tier(lane, app.name, delay)] = (lane, delay)
    for topic in subscribed:
        if topic not in result:
            lane, _, label = topic.rpartition(f".{app.name}.retry.")
            result[topic] = (lane, _delay(label))
    return {topic: result[topic] for topic in subscribed}


def _delay(label: str) -> timedelta:
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h|d)", label).groups()  # type: ignore[union-attr]
    names = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    return timedelta(**{names[unit]: int(number)})
