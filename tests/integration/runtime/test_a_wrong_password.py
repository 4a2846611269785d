"""A server that asks for passwords, and a client that has another one, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onceward_devstack.ports import free_ports
from onceward_devstack.postgres import Postgres, remove_outside_data
from onceward_runtime import migrate, postgres
from onceward_schemas.errors import DatabaseError


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dsn, with the right password, of a server that asks for it and lets in three ordinary sessions."""
    home: Path = tmp_path_factory.mktemp("postgres")
    settings = {"fsync": "off", "max_connections": "4", "superuser_reserved_connections": "1"}
    server = Postgres(home, port=free_ports(1)[0], settings=settings | {"max_wal_senders": "1"})
    try:
        server.start()
        dsn = server.dsn_of("postgres")
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("create role service login password 'right'")
            connection.execute("grant create on database postgres to service")
            rules = connection.execute("select current_setting('hba_file')").fetchone()
            assert rules is not None
            path = Path(rules[0])
            path.write_text("host all service 127.0.0.1/32 scram-sha-256\n" + path.read_text())
            connection.execute("select pg_reload_conf()")
        yield make_conninfo(dsn, user="service", password="right")
    finally:
        server.stop()
        remove_outside_data(home)


@pytest.mark.parametrize("password", ["s3cret", ""])
def test_it_is_said_and_not_shown(guarded: str, password: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        migrate.check(make_conninfo(guarded, password=password))
    assert caught.value.remedy == "Correct the password in ONCEWARD_DATABASE_URL."
    assert "s3cret" not in str(caught.value)


def test_the_right_one_is_let_in_and_an_ordinary_role_can_migrate(guarded: str) -> None:
    assert migrate.apply(guarded)
    migrate.check(guarded)


def test_too_many_connections_are_named(guarded: str) -> None:
    with ExitStack() as opened:

        def open_five() -> None:
            for _ in range(5):
                opened.enter_context(postgres.connect(guarded, application_name="x"))

        with pytest.raises(DatabaseError, match="max_connections"):
            open_five()
