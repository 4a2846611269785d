"""PostgreSQL's replication protocol over psycopg's libpq wrapper: a stream to read, and status messages to send.

psycopg has no public interface for it (psycopg issue 71), so this is the one file that uses `pgconn` for copy-both.
"""

from __future__ import annotations

import select
import struct
from datetime import timedelta
from typing import NamedTuple

import psycopg
from psycopg import pq, sql
from psycopg.rows import TupleRow

from onceward_runtime import postgres
from onceward_runtime.settings import Settings

_STATUS = struct.Struct(">cQQQQB")
_SENDER_TIMEOUT_SECONDS = 10


class StreamEndedError(Exception):
    """The server ended the stream; `sqlstate` says why where it is known."""

    def __init__(self, message: str, sqlstate: str | None) -> None:
        self.sqlstate = sqlstate
        super().__init__(message)


class System(NamedTuple):
    """Which server this is; a promoted replica has another timeline."""

    identifier: str
    timeline: int


def lsn_text(lsn: int) -> str:
    """PostgreSQL's spelling of a log position.

    >>> lsn_text(0x16B374D848)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:08X}"


def lsn_of(text: str) -> int:
    """Read PostgreSQL's spelling.

    >>> lsn_of('16/B374D848') == 0x16B374D848
    True
    """
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


class ReplicationLink:
    """A replication connection. The server ends it after ten seconds of silence, so that a frozen relay frees the slot."""

    def __init__(self, database: Settings | str) -> None:
        """Raises: DatabaseError by cause; without the replication right its message says so."""
        limits = postgres.SessionLimits()
        parameters = postgres.parameters_of(database, "onceward relay", limits, timedelta(seconds=10))
        options = f"{parameters.pop('options', '')} -c wal_sender_timeout={_SENDER_TIMEOUT_SECONDS}s".strip()
        with postgres.translated():
            self._connection: psycopg.Connection[TupleRow] = psycopg.connect(
                autocommit=True, replication="database", options=options, **parameters
            )
        self._pgconn = self._connection.pgconn
        self._poller = select.poll()
        self._poller.register(self._pgconn.socket, select.POLLIN)
        self.receive = self._pgconn.get_copy_data

    def identify(self) -> System:
        """Which server answers."""
        result = self._pgconn.exec_(b"IDENTIFY_SYSTEM")
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise StreamEndedError(result.get_error_message(), _sqlstate(result))
        return System(_text(result.get_value(0, 0)), int(_text(result.get_value(0, 1))))

    def start(self, slot: str, publication: str, lsn: int) -> None:
        """Take the slot and begin to stream from `lsn`, or from the slot's own position if that is later.

        Raises: StreamEndedError; sqlstate 55006 when another relay holds the slot.
        """
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {}, binary 'true')"
        )
        names = sql.Identifier(publication).as_string(self._connection)
        text = command.format(sql.Identifier(slot), sql.SQL(lsn_text(lsn)), sql.Literal(names))
        result = self._pgconn.exec_(text.as_string(self._connection).encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise StreamEndedError(result.get_error_message().strip(), _sqlstate(result))

    def wait(self, seconds: float) -> None:
        """Wait for data, and take it in. Raises: StreamEndedError when the connection is lost."""
        self._poller.poll(seconds * 1000)
        try:
            self._pgconn.consume_input()
        except psycopg.OperationalError as error:
            raise StreamEndedError(str(error).strip(), None) from error

    def confirm(self, lsn: int, *, reply: bool) -> None:
        """Tell the server what it may forget, and that we live. `reply` asks for a sign of life in return."""
        self._pgconn.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, 0, reply))
        self._pgconn.flush()

    def ended(self) -> StreamEndedError:
        """Why `receive` returned -1."""
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.FATAL_ERROR:
            return StreamEndedError("the server closed the stream", None)
        return StreamEndedError(result.get_error_message().strip(), _sqlstate(result))

    def close(self) -> None:
        self._pgconn.finish()


def _sqlstate(result: pq.abc.PGresult) -> str | None:
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    return state.decode() if state else None


def _text(value: bytes | None) -> str:
    return (value or b"").decode()
