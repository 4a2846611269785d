"""A revision of the user's own Alembic history brings Onceward's schema, in Alembic's transaction."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from alembic import command
from alembic.config import Config

from onceward_runtime import alembic as hook
from onceward_runtime import migrate
from onceward_schemas.errors import DatabaseError
from tests.support.databases import fresh_database
from tests.support.services import Services

NUMBERS = [migration.number for migration in migrate.migrations()]
ENVIRONMENT = """
    import sqlalchemy
    from alembic import context
    if context.is_offline_mode():
        context.configure(url="postgresql+psycopg://", literal_binds=True)
        with context.begin_transaction():
            context.run_migrations()
    else:
        engine = sqlalchemy.create_engine(context.config.get_main_option("sqlalchemy.url"), poolclass=sqlalchemy.NullPool)
        with engine.connect() as connection:
            context.configure(connection=connection)
            with context.begin_transaction():
                context.run_migrations()
"""
REVISION = """
    import os
    from alembic import op
    from onceward_runtime import alembic as onceward
    revision, down_revision = "1", None
    def upgrade():
        op.execute("create table mine (a int)")
        onceward.upgrade(op)
        if os.environ.get("BROKEN"):
            raise RuntimeError("broken")
"""


@pytest.fixture
def empty(services: Services) -> Iterator[str]:
    with fresh_database(services.dsn, template="template1") as dsn:
        yield dsn


@pytest.fixture
def project(tmp_path: Path, empty: str) -> Config:
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(textwrap.dedent(ENVIRONMENT))
    (tmp_path / "versions" / "1_onceward.py").write_text(textwrap.dedent(REVISION))
    config = Config()
    config.set_main_option("script_location", str(tmp_path))
    config.set_main_option("path_separator", "os")
    config.set_main_option("sqlalchemy.url", empty.replace("postgresql://", "postgresql+psycopg://"))
    return config


def test_a_revision_applies_what_is_pending(project: Config, empty: str) -> None:
    command.upgrade(project, "head")
    migrate.check(empty)
    with psycopg.connect(empty) as connection:
        assert connection.execute("select count(*) from mine").fetchone() == (0,)


def test_a_revision_that_fails_leaves_nothing(project: Config, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "1")
    with pytest.raises(RuntimeError, match="broken"):
        command.upgrade(project, "head")
    assert [m.number for m in migrate.plan(empty)] == NUMBERS


def test_offline_mode_is_refused_with_a_way_out(project: Config) -> None:
    with pytest.raises(DatabaseError, match="onceward db apply"):
        command.upgrade(project, "head", sql=True)


class Operations:
    """What `alembic.op` gives, for a connection of the test's own."""

    def __init__(self, connection: sqlalchemy.Connection) -> None:
        self._connection = connection

    def get_context(self) -> Any:
        return type("Context", (), {"as_sql": False})

    def get_bind(self) -> sqlalchemy.Connection:
        return self._connection


def test_a_revision_may_stop_at_a_number(empty: str) -> None:
    engine = sqlalchemy.create_engine(empty.replace("postgresql://", "postgresql+psycopg://"))
    with engine.begin() as connection:
        assert [m.number for m in hook.upgrade(Operations(connection), through=2)] == [1, 2]
    assert [m.number for m in migrate.plan(empty)] == NUMBERS[2:]
    with engine.begin() as connection:
        assert [m.number for m in hook.upgrade(Operations(connection))] == NUMBERS[2:]
        assert hook.upgrade(Operations(connection), through=2) == []
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_asynchronous_drivers_will_do(empty: str, driver: str) -> None:
    import asyncio

    from sqlalchemy.ext.asyncio import create_async_engine

    if driver == "asyncpg":
        pytest.importorskip("asyncpg")

    async def upgrade() -> None:
        engine = create_async_engine(empty.replace("postgresql://", f"postgresql+{driver}://"))
        async with engine.begin() as connection:
            await connection.run_sync(lambda bound: hook.upgrade(Operations(bound)))
        await engine.dispose()

    asyncio.run(upgrade())
    migrate.check(empty)
