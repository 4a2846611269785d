"""Publishing where it meets forks, pipelines, sessions with pending changes, roles without rights and event loops."""

from __future__ import annotations

import asyncio
import os
import threading
import time
import tracemalloc
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from onceward_producer.outbox import Outbox
from onceward_producer.rows import INSERT_MANY, OutboxRow, arrays
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.errors import DatabaseError, TransactionError
from onceward_schemas.ids import new_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Command):
    SCHEMA: ClassVar[CommandSchema] = CommandSchema(
        name="hr.Move", version=1, lane="hr.bulk", key="employee", aggregate="employee", avro={}
    )
    employee: str


class Codec:
    def encode(self, command: Command) -> bytes:
        return b"payload"


class Base(DeclarativeBase):
    pass


class Employee(Base):
    __tablename__ = "employee"
    id: Mapped[int] = mapped_column(primary_key=True)


outbox = Outbox(Codec())


def test_a_connection_taken_over_a_fork_is_refused(database: str) -> None:
    with psycopg.connect(database) as connection:
        outbox.publish(connection, Move(employee="7"))
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:  # says what it met and goes without touching the parent's socket
            try:
                outbox.publish(connection, Move(employee="8"))
                os.write(writing, b"published")
            except TransactionError as error:
                os.write(writing, error.message.encode())
            finally:
                os._exit(0)
        os.close(writing)
        os.waitpid(child, 0)
        assert os.read(reading, 1000) == b"The connection belongs to the parent process."
        os.close(reading)
        outbox.publish(connection, Move(employee="9"))
    assert _keys(database) == ["7", "9"]


def test_pending_changes_of_a_session_are_written_before_the_command(database: str) -> None:
    """Their row lock is what orders the commands of one aggregate."""
    engine = _engine(database)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Employee(id=7))
        outbox.publish(session, Move(employee="7"))
        order = "select (select xmin from employee), (select cmin::text::int from employee), cmin::text::int"
        _, changed, published = session.connection().exec_driver_sql(f"{order} from onceward.outbox").one()
        assert changed < published
    with Session(engine, autoflush=False) as session, session.begin():
        session.add(Employee(id=8))
        outbox.publish(session, Move(employee="8"))
        assert session.new, "a session that does not flush by itself is not made to"


def test_a_flush_that_fails_says_what_the_database_says(database: str) -> None:
    engine = _engine(database)
    with Session(engine) as session, session.begin():
        session.add(Employee(id=7))
        with pytest.raises(Exception, match='relation "employee" does not exist') as caught:
            outbox.publish(session, Move(employee="7"))
        assert not isinstance(caught.value, DatabaseError)
        with pytest.raises(TransactionError, match="cannot be used any more"):
            outbox.publish(session, Move(employee="7"))


def test_a_scoped_session_is_taken(database: str) -> None:
    session = scoped_session(sessionmaker(_engine(database)))
    with session.begin():
        outbox.publish(session, Move(employee="7"))
    session.remove()
    assert _keys(database) == ["7"]


def test_a_savepoint_of_the_caller_takes_its_commands_with_it(database: str) -> None:
    with Session(_engine(database)) as session, session.begin():
        outbox.publish(session, Move(employee="7"))
        with session.begin_nested() as nested:
            outbox.publish(session, Move(employee="8"))
            nested.rollback()
        outbox.publish(session, Move(employee="9"))
    assert _keys(database) == ["7", "9"]


def test_another_database_is_refused() -> None:
    with (
        Session(create_engine("sqlite://")) as session,
        session.begin(),
        pytest.raises(DatabaseError, match="sqlite database"),
    ):
        outbox.publish(session, Move(employee="7"))


@pytest.mark.parametrize("wrong", [None, "postgresql://", object(), Session])
def test_what_is_no_transaction_is_refused(wrong: Any) -> None:
    with pytest.raises(TransactionError, match="is not a transaction to publish in"):
        outbox.publish(wrong, Move(employee="7"))


def test_publishing_takes_part_in_a_pipeline(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        with connection.pipeline(), connection.transaction():
            outbox.publish(connection, Move(employee="7"))
            assert outbox.publish(connection, Move(employee="8"), dedupe_key="8").duplicate is False
            outbox.publish_many(connection, [Move(employee="9")])
        with connection.pipeline():
            connection.execute("select 1")
            with pytest.raises(TransactionError, match="autocommit"):
                outbox.publish(connection, Move(employee="10"))
    assert _keys(database) == ["7", "8", "9"]


def test_a_connection_in_the_middle_of_a_copy_is_refused(database: str) -> None:
    with psycopg.connect(database) as connection, connection.cursor().copy("copy (select 1) to stdout") as copy:
        with pytest.raises(TransactionError, match="busy with another statement"):
            outbox.publish(connection, Move(employee="7"))
        assert list(copy.rows()) == [("1",)]


def test_a_role_without_rights_and_a_read_only_transaction_say_what_is_missing(database: str) -> None:
    role = f"t_{uuid4().hex[:8]}"
    with psycopg.connect(database) as connection:
        connection.execute(f"create role {role}; grant usage on schema onceward to {role}; set local role {role}")
        with pytest.raises(DatabaseError, match=r"permission denied for table outbox.*Grant the role"):
            outbox.publish(connection, Move(employee="7"))
        connection.rollback()
        connection.execute("set transaction read only")
        with pytest.raises(DatabaseError, match=r"read-only transaction.*read-write"):
            outbox.publish_many(connection, [Move(employee="7")])
        connection.rollback()


def test_errors_that_callers_handle_themselves_pass_as_they_are(database: str) -> None:
    with psycopg.connect(database) as holder, psycopg.connect(database) as waiting:
        outbox.publish(holder, Move(employee="7"), dedupe_key="7")
        waiting.execute("set local lock_timeout = '20ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            outbox.publish(waiting, Move(employee="7"), dedupe_key="7")
        waiting.rollback()


def test_duplicates_under_repeatable_read_are_told_or_fail_as_a_serialization_error(database: str) -> None:
    """Never published twice."""
    with psycopg.connect(database) as first, psycopg.connect(database) as second:
        second.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        second.execute("select 1")
        kept = outbox.publish(first, Move(employee="7"), dedupe_key="7")
        first.commit()
        with pytest.raises(psycopg.errors.SerializationFailure):
            outbox.publish(second, Move(employee="7"), dedupe_key="7")
        second.rollback()
        assert outbox.publish(second, Move(employee="7"), dedupe_key="7") == (kept.id, True)
    assert _keys(database) == ["7"]


@pytest.mark.parametrize("kind", ["psycopg", "sqlalchemy"])
def test_the_event_loop_runs_on_while_the_registry_is_asked(database: str, kind: str) -> None:
    asked, answered = threading.Event(), threading.Event()

    class Slow(Codec):
        def encode(self, command: Command) -> bytes:
            asked.set()
            assert answered.wait(10), "the loop stood still"
            return b"payload"

    async def main() -> None:
        slow = Outbox(Slow())
        if kind == "psycopg":
            connection = await psycopg.AsyncConnection.connect(database)
            async with connection:
                await _beside(slow.publish(connection, Move(employee="7")))
        else:
            engine = create_async_engine(_url(database), poolclass=NullPool)
            async with AsyncSession(engine) as session, session.begin():
                await session.execute(text("select 1"))
                await _beside(slow.publish(session, Move(employee="7")))

    async def _beside(publishing: Awaitable[object]) -> None:
        task = asyncio.ensure_future(publishing)
        deadline = time.monotonic() + 10
        while not asked.is_set():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        answered.set()
        await task

    asyncio.run(main())
    assert _keys(database) == ["7"]


def test_rows_of_every_shape_go_in_with_one_statement(database: str) -> None:
    """What the engine writes: retries with the same id, dead letters, null payloads."""
    identity = new_id()
    rows = [
        OutboxRow(
            identity, "employee", "7", "hr.Move", b"\0\1", "hr.bulk.hr.retry.10s", 1, 2, "north", uuid4(), "00-", "{}"
        ),
        OutboxRow(identity, "employee", None, "hr.Move", None, "hr.bulk.hr.dlq"),
        OutboxRow(new_id(), "employee", "", "hr.Move", b"", "hr.bulk"),
    ]
    with psycopg.connect(database) as connection:
        connection.execute(INSERT_MANY, arrays(rows))
        connection.execute(INSERT_MANY, arrays([]))
        found = connection.execute(
            f"select {', '.join(OutboxRow._fields)} from onceward.outbox order by seq"
        ).fetchall()
    assert [OutboxRow(*each) for each in found] == rows


def test_many_commands_take_little_memory_however_many_they_are(database: str) -> None:
    def peak(count: int) -> int:
        with psycopg.connect(database) as connection:
            tracemalloc.start()
            outbox.publish_many(connection, (Move(employee=str(number)) for number in range(count)))
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            connection.rollback()
        return most

    peak(2_000)
    assert peak(20_000) < 1.5 * peak(3_000)


def _url(dsn: str) -> str:
    return f"postgresql+psycopg{dsn[dsn.index('://') :]}"


def _engine(dsn: str) -> Any:
    return create_engine(_url(dsn), poolclass=NullPool)


def _keys(dsn: str) -> list[str]:
    with psycopg.connect(dsn) as connection:
        return [row[0] for row in connection.execute("select aggregateid from onceward.outbox order by seq").fetchall()]
