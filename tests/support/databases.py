"""Fresh, migrated databases: migrated once into a template, copied for each test, dropped with their slots."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import conninfo, sql

from onceward_runtime.migrate import apply

_DROP_SECONDS = 10


def connect_to_server(dsn: str) -> psycopg.Connection:
    """A connection to the server's own database, for what concerns others."""
    return psycopg.connect(conninfo.make_conninfo(dsn, dbname="postgres"), autocommit=True)


@contextmanager
def template_database(dsn: str) -> Iterator[str]:
    """The name of a migrated database on the server of `dsn` that others are copied from."""
    name = f"onceward_template_{uuid.uuid4().hex[:12]}"
    _create(dsn, name, template="template1")
    try:
        migrate(_with_database(dsn, name))
        yield name
    finally:
        drop_database(dsn, name)


@contextmanager
def fresh_database(dsn: str, template: str | None = None) -> Iterator[str]:
    """The dsn of a new, migrated database on the server of `dsn`."""
    name = f"onceward_test_{uuid.uuid4().hex[:12]}"
    _create(dsn, name, template=template or "template1")
    try:
        if template is None:
            migrate(_with_database(dsn, name))
        yield _with_database(dsn, name)
    finally:
        drop_database(dsn, name)


def migrate(dsn: str) -> None:
    """Create Onceward's tables."""
    apply(dsn)


def drop_database(dsn: str, name: str) -> None:
    """Drop a database, its sessions and its replication slots; a relay that tries to come back is refused."""
    deadline = time.monotonic() + _DROP_SECONDS
    with connect_to_server(dsn) as connection:
        connection.execute(sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS false").format(sql.Identifier(name)))
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])
        while _active_slots(connection, name):
            if time.monotonic() > deadline:
                raise TimeoutError(f"a replication slot of {name} is still in use after {_DROP_SECONDS} s")
            time.sleep(0.01)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _active_slots(connection: psycopg.Connection, name: str) -> int:
    query = "SELECT count(*) FROM pg_replication_slots WHERE database = %s AND active"
    row = connection.execute(query, [name]).fetchone()
    assert row is not None
    return int(row[0])


def _create(dsn: str, name: str, *, template: str) -> None:
    statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
    with connect_to_server(dsn) as connection:
        connection.execute(statement)


def _with_database(dsn: str, name: str) -> str:
    """The same server, another database; kept in the form of a URL where it is one, for other libraries read it too."""
    if "://" not in dsn:
        return conninfo.make_conninfo(dsn, dbname=name)
    address, question, options = dsn.partition("?")
    scheme, _, rest = address.partition("://")
    return f"{scheme}://{rest.split('/')[0]}/{name}{question}{options}"
