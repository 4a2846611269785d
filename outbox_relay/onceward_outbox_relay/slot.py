"""What must be so on the server before rows can be streamed: settings, rights, the publication, the slot. Each with a remedy."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import psycopg
from psycopg import errors, sql

from onceward_outbox_relay.layout import Layout
from onceward_outbox_relay.replication import System, lsn_of, lsn_text
from onceward_runtime import events, log
from onceward_runtime.sql import query
from onceward_schemas.errors import DatabaseError


class StreamingImpossibleError(DatabaseError):
    """This server, or this role, does not allow streaming; polling may."""


class SlotState(NamedTuple):
    """A slot as the server shows it."""

    plugin: str
    database: str
    wal_status: str | None
    active_pid: int | None
    confirmed: int | None


def check_server(connection: psycopg.Connection[Any]) -> None:
    """Raises: StreamingImpossibleError for the server's wal_level or the role's rights."""
    level, may, role = _one(connection, query("onceward_outbox_relay", "server"))
    if level != "logical":
        raise StreamingImpossibleError(
            f"The server has wal_level={level}.",
            remedy="Set wal_level=logical and restart PostgreSQL, or run `onceward relay --mode poll`.",
        )
    if not may:
        raise StreamingImpossibleError(
            f"The role {role!r} may not replicate.",
            remedy=f'Run `ALTER ROLE "{role}" REPLICATION`, or run `onceward relay --mode poll`.',
        )


def ensure_publication(connection: psycopg.Connection[Any], name: str, layout: Layout) -> None:
    """See that the publication carries inserts into the outbox and nothing else; make it when there is none.

    Raises: DatabaseError.
    """
    target = sql.Identifier(layout.schema, layout.table)
    create = sql.SQL("CREATE PUBLICATION {} FOR TABLE {} WITH (publish = 'insert')").format(
        sql.Identifier(name), target
    )
    row = connection.execute(query("onceward_outbox_relay", "publication"), (name,)).fetchone()
    statement = create.as_string(connection)
    if row is None:
        try:
            connection.execute(create)
            return
        except (errors.DuplicateObject, errors.UniqueViolation):
            return ensure_publication(connection, name, layout)
        except errors.UndefinedTable as error:
            raise DatabaseError(
                f"There is no table {layout.schema}.{layout.table}.", remedy="Run `onceward db apply`."
            ) from error
        except errors.InsufficientPrivilege as error:
            raise DatabaseError(
                f"There is no publication {name!r}, and this role may not make it.",
                remedy=f"Run as the table's owner: {statement}",
            ) from error
    all_tables, inserts, others, tables = row
    wanted = f"{layout.schema}.{layout.table}"
    if all_tables or tables != [wanted]:
        shown = "all tables" if all_tables else ", ".join(tables) or "nothing"
        raise DatabaseError(
            f"The publication {name!r} covers {shown}; it must cover {wanted} and nothing else.",
            remedy=f"Use another name (ONCEWARD_PUBLICATION), or run: DROP PUBLICATION {name}; {statement}",
        )
    if not inserts or others:
        raise DatabaseError(
            f"The publication {name!r} must publish inserts and nothing else.",
            remedy=f"Run: ALTER PUBLICATION {name} SET (publish = 'insert')",
        )


def look_up(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    """The slot, or None when there is none."""
    row = connection.execute(query("onceward_outbox_relay", "slot"), (name,)).fetchone()
    if row is None:
        return None
    plugin, database, wal_status, active_pid, confirmed = row
    return SlotState(plugin, database, wal_status, active_pid, None if confirmed is None else lsn_of(confirmed))


def ensure_slot(connection: psycopg.Connection[Any], name: str, *, timeout: timedelta) -> SlotState:
    """Find the slot, or make it; a slot that PostgreSQL invalidated is made anew. The table must be swept after that.

    Raises: DatabaseError; on a time-out it names the transactions that creating the slot waits for.
    """
    state = look_up(connection, name)
    if state is not None and state.wal_status == "lost":
        drop(connection, name)
        state = None
    if state is None:
        _create(connection, name, timeout)
        state = look_up(connection, name)
        assert state is not None
        log.emit(events.RELAY_SLOT_CREATED, slot=name, position=lsn_text(state.confirmed or 0))
    (database,) = _one(connection, "select current_database()")
    if state.plugin != "pgoutput" or state.database != database:
        raise DatabaseError(
            f"The slot {name!r} belongs to the plug-in {state.plugin!r} in the database {state.database!r}.",
            remedy=f"Name another slot (ONCEWARD_SLOT), or run: SELECT pg_drop_replication_slot('{name}')",
        )
    return state


def drop(connection: psycopg.Connection[Any], name: str) -> None:
    """Drop the slot if it is there and nobody holds it."""
    with contextlib.suppress(errors.UndefinedObject, errors.ObjectInUse):
        connection.execute("select pg_drop_replication_slot(%s)", (name,))


def _create(connection: psycopg.Connection[Any], name: str, timeout: timedelta) -> None:
    """PostgreSQL waits here until every transaction that writes now has ended."""
    try:
        with _statement_timeout(connection, timeout):
            failover = connection.info.server_version >= 170000
            connection.execute(
                query("onceward_outbox_relay", "create_failover_slot" if failover else "create_slot"), (name,)
            )
    except errors.DuplicateObject:
        return
    except (errors.QueryCanceled, errors.LockNotAvailable) as error:
        blockers = connection.execute(query("onceward_outbox_relay", "writers")).fetchall()
        shown = "; ".join(f"process {pid} ({app}, for {seconds:.0f} s)" for pid, app, seconds in blockers) or "none now"
        raise DatabaseError(
            f"The slot {name!r} could not be made within {timeout.total_seconds():.0f} s: PostgreSQL waits for "
            f"transactions that write: {shown}.",
            remedy="Let them end, or end them with pg_terminate_backend; the relay tries again.",
        ) from error
    except errors.ConfigurationLimitExceeded as error:
        raise DatabaseError(
            "All replication slots of the server are in use.",
            remedy="Drop unused ones, or raise max_replication_slots.",
        ) from error
    except errors.InsufficientPrivilege as error:
        raise StreamingImpossibleError("The role may not create a replication slot.") from error


@contextlib.contextmanager
def _statement_timeout(connection: psycopg.Connection[Any], timeout: timedelta) -> Iterator[None]:
    milliseconds = str(round(timeout.total_seconds() * 1000))
    connection.execute("select set_config('statement_timeout', %s, false)", (milliseconds,))
    try:
        yield
    finally:
        if not connection.broken:
            connection.execute("reset statement_timeout")


# What was confirmed, as the database remembers it.


def acknowledged(connection: psycopg.Connection[Any], name: str, system: System) -> int | None:
    """How far this slot's rows are known to be in Kafka; None when the table was never swept on this server."""
    row = connection.execute(query("onceward_outbox_relay", "acknowledged"), (name, _system(system))).fetchone()
    return None if row is None else lsn_of(row[0])


def remember(connection: psycopg.Connection[Any], name: str, lsn: int) -> None:
    """Write a position down before it is confirmed to the server."""
    connection.execute(query("onceward_outbox_relay", "remember"), (lsn_text(lsn), name))


def mark_swept(connection: psycopg.Connection[Any], name: str, system: System, lsn: int) -> None:
    """Every row committed before `lsn` is in Kafka, whatever the slot has seen. Also how a running slot is adopted."""
    connection.execute(query("onceward_outbox_relay", "mark_swept"), (name, _system(system), lsn_text(lsn)))


def _system(system: System) -> str:
    return f"{system.identifier}/{system.timeline}"


def _one(connection: psycopg.Connection[Any], statement: str) -> Any:
    row = connection.execute(statement).fetchone()
    assert row is not None
    return row
