"""The relay as a service: checks, waits for the slot, sweeps if it must, streams, and begins again after whatever breaks."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal, get_args

import psycopg

from onceward_outbox_relay import polling, slot
from onceward_outbox_relay.forward import Forwarder, Policy
from onceward_outbox_relay.kafka_sink import Batch, KafkaSink, SinkFailedError
from onceward_outbox_relay.keeper import Keeper
from onceward_outbox_relay.layout import Layout
from onceward_outbox_relay.pgoutput import MalformedMessageError
from onceward_outbox_relay.positions import Positions
from onceward_outbox_relay.replication import ReplicationLink, StreamEndedError, System, lsn_text
from onceward_outbox_relay.slot import StreamingImpossibleError
from onceward_outbox_relay.stream import DrainTimeoutError, Stream
from onceward_outbox_relay.sweep import sweep
from onceward_outbox_relay.topic_watch import TopicWatch
from onceward_runtime import events, log, postgres
from onceward_runtime.kafka import client_config, producer_config
from onceward_runtime.options import check_duration, check_one_of
from onceward_runtime.postgres import SessionLimits
from onceward_runtime.service import Loop
from onceward_runtime.settings import Settings
from onceward_schemas.errors import DatabaseError, SettingsError

Mode = Literal["auto", "stream", "poll"]
_BACK_OFF_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_STANDBY_SECONDS = 0.2
_INVALIDATED, _IN_USE, _UNDEFINED = "55000", "55006", "42704"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """How one relay works; where the servers are is in the settings."""

    mode: Mode = "auto"
    """`stream`, `poll`, or `auto`: stream where the server and the role allow it. Defaults to auto."""
    policy: Policy = "park_key"
    """What follows a row that Kafka will never accept: its key's later rows (`park_key`), nothing (`park_row`), or the
    end of the relay (`stop`). Defaults to park_key."""
    grace: timedelta = timedelta(seconds=10)
    """How long a topic may be missing or forbidden before its rows are parked. Defaults to 10 s."""
    slot_timeout: timedelta = timedelta(seconds=10)
    """How long making the slot may wait for open transactions. Defaults to 10 s."""
    poll_interval: timedelta = timedelta(milliseconds=200)
    """How often an idle relay that polls looks. Defaults to 200 ms."""
    flush_seconds: float = 0.002
    """How long an idle relay waits for deliveries before it reads again. Defaults to 2 ms."""
    layout: Layout = field(default_factory=Layout)
    """The table. Defaults to onceward.outbox."""
    producer: dict[str, Any] = field(default_factory=dict)
    """More librdkafka settings. Defaults to none."""

    def __post_init__(self) -> None:
        check_one_of("mode", self.mode, get_args(Mode))
        check_one_of("policy", self.policy, get_args(Policy))
        for name in ("grace", "slot_timeout", "poll_interval"):
            check_duration(name, getattr(self, name))
        flush = self.flush_seconds
        if isinstance(flush, bool) or not isinstance(flush, int | float) or not 0 <= flush < 60:
            raise SettingsError(f"flush_seconds is {flush!r:.40}.", remedy="Pass seconds, from 0 to less than 60.")


class Relay:
    """Moves outbox rows to Kafka until stopped. Several may run: one holds the slot, the others wait."""

    name = "relay"

    def __init__(self, settings: Settings, options: RelayOptions | None = None) -> None:
        self._settings = settings
        self._options = options or RelayOptions()
        self._slot = settings.slot
        config = producer_config(settings, **{"client.id": f"onceward-relay-{settings.slot}"}, **self._options.producer)
        self._sink = KafkaSink(config)
        self._watch = TopicWatch(client_config(settings, log_level=0))
        self._forwarder = Forwarder(
            self._options.layout,
            self._sink,
            self._watch,
            policy=self._options.policy,
            grace=self._options.grace,
            slot=self._slot,
        )
        self._positions: Positions[Batch] | None = None
        self._system: System | None = None
        self._confirmed = 0
        self._active = False
        self._standby = False
        self._failures = 0
        self._gauge = events.RELAY_ACTIVE_SLOT.labels(slot=self._slot)
        self._reconnects = events.RELAY_RECONNECTS.labels(slot=self._slot)
        self._loop = Loop("relay", self._run, drain=settings.drain_timeout + timedelta(seconds=5))

    # -- lifecycle

    def start(self) -> None:
        """Check the server, then run. Raises: DatabaseError, with a remedy."""
        with self._connect() as connection, postgres.translated():
            if not self._streams(connection):
                polling.check_table(connection, self._options.layout)
        self._loop.start()

    def stop(self) -> None:
        """Wait for what is on its way, confirm it, and give the slot free."""
        self._loop.stop()

    def alive(self) -> bool:
        return self._loop.alive()

    def ready(self) -> bool:
        """Whether it relays, or stands by for the one that does."""
        return self._loop.ready() and (self._active or self._standby)

    @property
    def active(self) -> bool:
        """Whether this relay holds the slot."""
        return self._active

    @property
    def ended(self) -> bool:
        return self._loop.ended

    @property
    def error(self) -> BaseException | None:
        return self._loop.error

    # -- the loop

    def _run(self, loop: Loop) -> None:
        try:
            while not loop.stopping:
                try:
                    self._session(loop)
                except DrainTimeoutError:
                    break
                except SinkFailedError as error:
                    self._sink.rebuild()
                    self._rewind()
                    self._retry(loop, error)
                except (psycopg.Error, DatabaseError, StreamEndedError, MalformedMessageError) as error:
                    self._retry(loop, error)
                finally:
                    self._active = self._standby = False
                    self._gauge.set(0)
        finally:
            self._watch.close()
            self._sink.close()

    def _retry(self, loop: Loop, error: Exception) -> None:
        failures = max(self._failures, self._sink.refusals - 1)  # a stream may begin although Kafka refuses every batch
        delay = _BACK_OFF_SECONDS[min(failures, len(_BACK_OFF_SECONDS) - 1)]
        self._failures += 1
        self._reconnects.inc()
        log.emit(events.RELAY_RECONNECTING, slot=self._slot, error=error, delay_seconds=delay)
        loop.wait(delay)

    def _rewind(self) -> None:
        """Everything not acknowledged will be read again."""
        if self._positions is not None:
            self._positions.rewound()
        self._forwarder.rewound()

    def _streams(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether to stream; says in the log why not. Raises: DatabaseError."""
        if self._options.mode == "poll":
            return False
        try:
            slot.check_server(connection)
            slot.ensure_publication(connection, self._settings.publication, self._options.layout)
        except StreamingImpossibleError as error:
            if self._options.mode == "stream":
                raise
            log.emit(events.RELAY_POLLING, reason=error.message)
            return False
        return True

    def _connect(self) -> psycopg.Connection[Any]:
        limits = SessionLimits(lock_timeout=timedelta(seconds=5))
        return postgres.connect(self._settings, application_name="onceward relay", autocommit=True, limits=limits)

    def _session(self, loop: Loop) -> None:
        """From connecting to the end of one stream."""
        with self._connect() as connection:
            if not self._streams(connection):
                self._poll(loop, connection)
                return
            slot.ensure_slot(connection, self._slot, timeout=self._options.slot_timeout)
            link = ReplicationLink(self._settings)
            try:
                self._recognise(link.identify())
                if self._take(loop, connection, link):
                    self._stream(loop, connection, link)
            finally:
                link.close()

    def _poll(self, loop: Loop, connection: psycopg.Connection[Any]) -> None:
        polling.poll(self._settings, self._options, loop, connection, self._forwarder, self._sink, self._set_state)

    def _set_state(self, active: bool) -> None:
        self._active, self._standby = active, not active
        self._gauge.set(active)
        if active:
            self._failures = 0

    def _recognise(self, system: System) -> None:
        """Positions of another server, or of another history of it, mean nothing."""
        if self._system != system:
            self._system, self._positions, self._confirmed = system, None, 0
            self._forwarder.rewound()

    def _take(self, loop: Loop, connection: psycopg.Connection[Any], link: ReplicationLink) -> bool:
        """Wait until the slot is ours. False when asked to stop, or when the slot is gone and must be made anew."""
        while not loop.stopping:
            state = slot.look_up(connection, self._slot)
            if state is None:
                return False
            if state.active_pid is None:
                try:
                    link.start(self._slot, self._settings.publication, self._positions.read if self._positions else 0)
                    return True
                except StreamEndedError as error:
                    if error.sqlstate == _INVALIDATED:
                        slot.drop(connection, self._slot)
                        return False
                    if error.sqlstate != _IN_USE:
                        raise
            if not self._standby:
                self._set_state(False)
                log.emit(events.RELAY_STANDBY, slot=self._slot, pid=state.active_pid)
            loop.wait(_STANDBY_SECONDS)
        return False

    def _stream(self, loop: Loop, connection: psycopg.Connection[Any], link: ReplicationLink) -> None:
        """Hold the slot: sweep if it has missed something, then stream."""
        assert self._system is not None
        state = slot.look_up(connection, self._slot)
        assert state is not None
        confirmed = state.confirmed or 0
        known = slot.acknowledged(connection, self._slot, self._system)
        if known is None or confirmed > max(known, self._confirmed):
            self._sweep(loop, connection, link, confirmed)
            known = confirmed
        if self._positions is None:
            self._positions = Positions(confirmed, lambda: Batch(self._sink))
        keeper = Keeper(self._settings, self._slot, self._options.layout, known)
        stream = Stream(
            link,
            keeper,
            self._forwarder,
            self._sink,
            self._positions,
            layout=self._options.layout,
            slot=self._slot,
            flush_seconds=self._options.flush_seconds,
        )
        self._forwarder.attach(connection, stream.pulse)
        log.emit(events.RELAY_ACTIVE, slot=self._slot, position=lsn_text(self._positions.read), mode="stream")
        keeper.start()
        self._set_state(True)
        broke_off = False
        try:
            stream.run(lambda: loop.stopping, loop.beat, self._settings.drain_timeout.total_seconds())
            broke_off = True
        except StreamEndedError as error:
            broke_off = True  # between two rows: what was read is still on its way
            if error.sqlstate == _UNDEFINED:  # the slot is older than its publication
                link.close()
                slot.drop(connection, self._slot)
            raise
        finally:
            keeper.stop()
            self._finish(connection, link, stream)
            if broke_off:
                self._positions.interrupted()
            else:
                self._rewind()

    def _finish(self, connection: psycopg.Connection[Any], link: ReplicationLink, stream: Stream) -> None:
        """Confirm what is acknowledged, if the connections still stand."""
        assert self._positions is not None
        stream.account()
        self._confirmed = max(self._confirmed, stream.confirmed)
        with contextlib.suppress(psycopg.Error):  # a lost connection; then the next session confirms it
            slot.remember(connection, self._slot, self._positions.acknowledged)
            link.confirm(self._positions.acknowledged, reply=False)
            self._confirmed = max(self._confirmed, self._positions.acknowledged)

    def _sweep(self, loop: Loop, connection: psycopg.Connection[Any], link: ReplicationLink, confirmed: int) -> None:
        """Durable only once every row is settled; a crash before that sweeps again."""
        assert self._system is not None
        due = 0.0

        def pulse() -> None:
            nonlocal due
            if loop.stopping:
                raise DrainTimeoutError
            if time.monotonic() >= due:
                due = time.monotonic() + 1
                link.confirm(confirmed, reply=False)
                loop.beat()

        started = time.monotonic()
        self._forwarder.attach(connection, pulse)
        with self._connect() as reading:
            rows = sweep(reading, self._options.layout, self._forwarder, self._sink, pulse)
        slot.mark_swept(connection, self._slot, self._system, confirmed)
        log.emit(events.RELAY_SWEPT, slot=self._slot, rows=rows, seconds=round(time.monotonic() - started, 3))
