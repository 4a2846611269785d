"""A way past psycopg's generators for statements in a pipeline: straight to libpq, and their results straight from it.

It takes what a connection has prepared already; all else goes psycopg's own way, and both may be mixed as one likes, for
they share psycopg's queues. What a caller sees is the same (tests/integration/consumer/test_express_statements.py).
"""

from __future__ import annotations

import select
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import ref

import psycopg
from psycopg import Pipeline, pq
from psycopg._cursor_base import BaseCursor
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH, MAX_CACHED_STATEMENT_PARAMS, _query2pg
from psycopg.adapt import AdaptersMap, Transformer

# Private parts of psycopg, see connections.py.

_OK: Final = pq.ConnStatus.OK
_BAD: Final = pq.ConnStatus.BAD
_COMMAND_OK: Final = pq.ExecStatus.COMMAND_OK
_TUPLES_OK: Final = pq.ExecStatus.TUPLES_OK
_WELL: Final = frozenset({_COMMAND_OK, _TUPLES_OK})
_PIPELINE_SYNC: Final = pq.ExecStatus.PIPELINE_SYNC
_FATAL_ERROR: Final = pq.ExecStatus.FATAL_ERROR
_ENDS_ITSELF: Final = frozenset(
    {pq.ExecStatus.PIPELINE_SYNC, pq.ExecStatus.COPY_IN, pq.ExecStatus.COPY_OUT, pq.ExecStatus.COPY_BOTH}
)
"""Results after which no empty one follows."""
_MOST_UNREAD: Final = 256
"""Statements after which is read what the server says, so that it does not wait for us while we wait for it."""
_MOST_PLANS: Final = 1000
_POLL_MS: Final = 1000


class Plan(NamedTuple):
    """A statement as psycopg writes it for the server."""

    query: bytes
    formats: list[Any]
    order: list[str] | None
    """The names of its parameters, None where they are counted."""
    places: int


_plans: dict[str, Plan] = {}
_bare: dict[str, Plan] = {}
"""Of statements without parameters, in which a percent sign is nothing but that."""


def learn(query: str, params: Any) -> None:
    """Remember a statement that psycopg has just taken with such parameters."""
    if len(query) > MAX_CACHED_STATEMENT_LENGTH:
        return
    for plans in (_plans, _bare):
        if len(plans) >= _MOST_PLANS:
            plans.clear()
    if params is None:
        _bare[query] = Plan(query.encode(), [], None, 0)
    elif len(params) <= MAX_CACHED_STATEMENT_PARAMS:
        text, formats, order, parts = _query2pg(query.encode(), "utf-8")
        _plans[query] = Plan(text, formats, order, len(parts) - 1)


def _in_order(plan: Plan, params: Any) -> Any:
    """The parameters in the statement's order; None where psycopg has to look at them, to refuse them perhaps."""
    kind = type(params)
    if plan.order is None:
        return params if (kind is tuple or kind is list) and len(params) == plan.places else None
    if kind is not dict or not all(name in params for name in plan.order):
        return None
    return [params[name] for name in plan.order]


class Adapters(AdaptersMap):
    """A connection's adapters; counts their changes, after which dumpers are looked for again."""

    changes = 0

    def register_dumper(self, *arguments: Any) -> None:
        self.changes += 1
        super().register_dumper(*arguments)

    def register_loader(self, *arguments: Any) -> None:
        self.changes += 1
        super().register_loader(*arguments)


class LightCursor:
    """What both kinds of cursor share: they are made without what most of them never need, and can be sent past psycopg."""

    __slots__ = ()

    def __init__(self, connection: Any, *, row_factory: Any = None) -> None:
        cursor: Any = self
        cursor._conn = connection
        cursor._pgconn = connection.pgconn
        cursor._row_factory = row_factory or connection.row_factory
        cursor.format = pq.Format.TEXT
        cursor.arraysize = 1
        cursor._closed = False
        cursor._last_query = None
        cursor._reset()

    @property
    def _adapters(self) -> AdaptersMap:
        """Made when somebody asks for them, and may change them."""
        try:
            return _ADAPTERS.__get__(self)  # type: ignore[no-any-return]
        except AttributeError:
            cursor: Any = self
            made = AdaptersMap(cursor._conn.adapters)
            made._register_loader_callback = partial(cursor._loaders_changed, ref(cursor))
            _ADAPTERS.__set__(cursor, made)
            cursor._last_query = None  # what follows is not to be adapted by those of the connection
            return made

    @property
    def _tx(self) -> Any:
        """Made when the first row is wanted."""
        try:
            return _TX.__get__(self)
        except AttributeError:
            cursor: Any = self
            made = Transformer(cursor._conn)
            made.set_pgresult(cursor.pgresult)
            _TX.__set__(cursor, made)
            return made

    @_tx.setter
    def _tx(self, value: Any) -> None:
        _TX.__set__(self, value)

    @property
    def is_light(self) -> bool:
        """Whether it is open, and has no adapters of its own."""
        try:
            _ADAPTERS.__get__(self)
        except AttributeError:
            return not self._closed  # type: ignore[attr-defined]
        return False

    def start(self, query: str) -> None:
        """Forget the statement before."""
        cursor: Any = self
        if cursor._last_query is not None:
            cursor._reset()
            with suppress(AttributeError):
                _TX.__delete__(cursor)
        cursor._last_query = query

    def arrived(self, results: list[Any], status: int) -> None:
        """Take the result of a statement that went well. What loads rows is made when somebody wants them."""
        cursor: Any = self
        if cursor._execmany_returning is not None:
            cursor._set_results(results)
            return
        [result] = cursor._results = results
        if status == _TUPLES_OK:
            with suppress(AttributeError):
                _TX.__delete__(cursor)
            cursor._rowcount = result.ntuples
        else:
            count = result.command_tuples
            cursor._rowcount = -1 if count is None else count
        cursor.pgresult = result
        cursor._statusmessage = result.command_status
        cursor._make_row = cursor._row_factory(cursor)


_TX: Final[Any] = BaseCursor.__dict__["_tx"]
_ADAPTERS: Final[Any] = BaseCursor.__dict__["_adapters"]


class Express:
    """What belongs to one connection. Its methods are called with the connection's lock held."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._adapters: Adapters = connection.adapters
        self._changes = -1
        self._transformer: Any = None
        self._poll = select.poll()
        self._events = 0

    def send(self, cursor: Any, query: str, params: Any) -> bool:
        """Put a statement into the pipeline. False where psycopg has to; then nothing has happened.

        Raises: what psycopg raises for parameters that cannot be adapted, or where the connection is lost.
        """
        connection, pgconn = self._connection, self._pgconn
        connection.touched = True
        prepared = connection._prepared
        if type(query) is not str or prepared._to_flush or not connection._autocommit or pgconn.status != _OK:
            return False
        if params is None:
            if (plan := _bare.get(query)) is None:
                return False
            values = formats = None
            key: tuple[bytes, tuple[int, ...]] = plan.query, ()
        else:
            if (plan := _plans.get(query)) is None or (ordered := _in_order(plan, params)) is None:
                return False
            if pgconn.parameter_status(b"client_encoding") != b"UTF8":
                return False
            if self._changes != self._adapters.changes:
                self._changes, self._transformer = self._adapters.changes, Transformer(connection)
            transformer = self._transformer
            values = transformer.dump_sequence(ordered, plan.formats)
            formats = transformer.formats
            key = plan.query, transformer.types
        name = prepared._names.get(key)
        if name is None or prepared.prepare_threshold is None:
            return False
        prepared._names.move_to_end(key)
        pipeline = connection._pipeline
        self._start()
        cursor.start(query)
        pgconn.send_query_prepared(name, values, param_formats=formats, result_format=cursor.format)
        pending = pipeline.result_queue
        pending.append((cursor, None))
        if len(pending) % _MOST_UNREAD == 0:
            pgconn.flush()
            pgconn.consume_input()
        return True

    def command(self, cursor: Any, text: bytes) -> None:
        """Put a statement without parameters into the pipeline."""
        pipeline = self._connection._pipeline
        self._start()
        self._pgconn.send_query_params(text, None)
        pipeline.result_queue.append((cursor, None))

    def enter(self) -> None:
        """Begin a pipeline, as `connection.pipeline().__enter__()` does."""
        connection = self._connection
        connection._check_connection_ok()
        pipeline = Pipeline(connection)
        self._pgconn.enter_pipeline_mode()
        pipeline.level = 1
        connection._pipeline = pipeline

    def leave(self) -> None:
        """End the pipeline, once everything in it is done. Raises: the first error in it."""
        connection, pgconn = self._connection, self._pgconn
        pipeline = connection._pipeline
        try:
            self.sync()
            self._notice()
        finally:
            pipeline.level -= 1
            if pipeline.level == 0:
                connection._pipeline = None
                if pgconn.status != _BAD:
                    pgconn.exit_pipeline_mode()

    def sync(self) -> None:
        """Wait for everything in the pipeline; statements after an error are taken again. Raises: the first error."""
        pipeline = self._connection._pipeline
        pipeline._enqueue_sync()
        self.receive()

    def fetch(self) -> None:
        """Wait for everything in the pipeline. Raises: the first error."""
        self._connection._pipeline.command_queue.append(self._pgconn.send_flush_request)
        self.receive()

    def _start(self) -> None:
        """Hand to libpq what psycopg has queued."""
        commands = self._connection._pipeline.command_queue
        while commands:
            commands.popleft()()

    def flush(self) -> None:
        """Send everything that is queued, and read what comes meanwhile."""
        pgconn = self._pgconn
        self._start()
        while pgconn.flush():
            self._wait(select.POLLIN | select.POLLOUT)
            pgconn.consume_input()

    def receive(self) -> None:
        """Send what is queued, and wait for all results."""
        self.flush()
        pipeline = self._connection._pipeline
        pending = pipeline.result_queue
        first: psycopg.Error | None = None
        while pending and (results := self._results()):
            queued = pending.popleft()
            try:
                status = results[0].status
                if queued is None:
                    if status not in (_COMMAND_OK, _PIPELINE_SYNC):
                        pipeline._process_results(queued, results)
                elif queued[1] is None and status in _WELL:
                    queued[0].arrived(results, status)
                else:
                    pipeline._process_results(queued, results)
            except psycopg.Error as error:
                first = first or error
        if first is not None:
            raise first

    def _results(self) -> list[Any]:
        """The results of the next statement: one, for only the simple protocol has several, and a pipeline has not that.

        Most calls here let go of the interpreter's lock, which costs more than they do where threads wait for it.
        """
        pgconn = self._pgconn
        while pgconn.is_busy():
            self._wait(select.POLLIN)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:
            return []
        if result.status not in _ENDS_ITSELF:
            pgconn.get_result()  # the None that ends a statement's results; it is never waited for
        if result.status == _FATAL_ERROR:
            with suppress(
                psycopg.DatabaseError
            ):  # it may be the server's last word: see whether the connection is lost
                pgconn.consume_input()
        return [result]

    def _wait(self, events: int) -> None:
        if events != self._events:
            self._events = events
            self._poll.register(self._pgconn.socket, events)
        self._poll.poll(_POLL_MS)

    def _notice(self) -> None:
        """Hand out notifications, as psycopg does."""
        while (notify := self._pgconn.notifies()) is not None:
            if self._pgconn.notify_handler:
                self._pgconn.notify_handler(notify)
