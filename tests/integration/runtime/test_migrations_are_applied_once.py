"""Migrations run once each, whoever runs them and however many do, and a database that does not fit is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

from onceward_runtime import migrate
from onceward_schemas.errors import DatabaseError
from tests.support.databases import fresh_database
from tests.support.services import Services

NUMBERS = [migration.number for migration in migrate.migrations()]


@pytest.fixture
def empty(services: Services) -> Iterator[str]:
    """A database without Onceward's schema."""
    with fresh_database(services.dsn, template="template1") as dsn:
        yield dsn


def recorded(dsn: str) -> list[int]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("select number from onceward.migrations order by number")]


def test_what_is_planned_is_applied_and_then_nothing_is_left(empty: str) -> None:
    with pytest.raises(DatabaseError, match=r"lacks \d+ migrations: 0001 outbox.*`onceward db apply`"):
        migrate.check(empty)
    assert [m.number for m in migrate.plan(empty)] == NUMBERS
    assert [m.number for m in migrate.apply(empty)] == NUMBERS
    assert recorded(empty) == NUMBERS
    assert migrate.plan(empty) == []
    assert migrate.apply(empty) == []
    migrate.check(empty)


def test_planning_changes_nothing(empty: str) -> None:
    migrate.plan(empty)
    with psycopg.connect(empty) as connection:
        assert connection.execute("select to_regnamespace('onceward')").fetchone() == (None,)


def test_eight_processes_apply_each_migration_once(empty: str) -> None:
    code = (
        "import sys; from onceward_runtime import migrate; print('ready', flush=True); sys.stdin.readline();"
        "print(*(m.number for m in migrate.apply(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, empty]
    started = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in started:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0] * 8, answers
    assert sorted(int(number) for out, _ in answers for number in out.split()) == NUMBERS
    assert recorded(empty) == NUMBERS


def test_a_migration_that_fails_leaves_nothing_of_itself(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    good = migrate.Migration(1, "good", "create table onceward.good (a int)", "aa")
    bad = migrate.Migration(2, "bad", "create table onceward.bad (a int); select 1/0", "bb")
    monkeypatch.setattr(migrate, "migrations", lambda: (good, bad))
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate.apply(empty)
    assert recorded(empty) == [1]
    with psycopg.connect(empty) as connection:
        found = connection.execute("select to_regclass('onceward.good')::text, to_regclass('onceward.bad')::text")
        assert found.fetchone() == ("onceward.good", None)


def test_an_applied_file_that_changed_is_refused(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("update onceward.migrations set sha256 = 'other' where number = 2")
    with pytest.raises(DatabaseError, match="0002 ledger was applied with another content"):
        migrate.apply(database)


def test_a_newer_database_is_refused(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("insert into onceward.migrations values (9000, 'tomorrow', 'cc')")
    for use in (migrate.check, migrate.plan, migrate.apply):
        with pytest.raises(DatabaseError, match="9000 tomorrow"):
            use(database)


def test_a_role_that_may_only_read_can_check(database: str) -> None:
    with psycopg.connect(database) as connection:
        name = f"reader_{connection.info.dbname}"
        connection.execute(f'create role "{name}" login')
        connection.execute(f'grant usage on schema onceward to "{name}"')
        connection.execute(f'grant select on onceward.migrations to "{name}"')
    try:
        migrate.check(psycopg.conninfo.make_conninfo(database, user=name))
        assert migrate.plan(psycopg.conninfo.make_conninfo(database, user=name)) == []
    finally:
        with psycopg.connect(database) as connection:
            connection.execute(f'drop owned by "{name}"')
            connection.execute(f'drop role "{name}"')
