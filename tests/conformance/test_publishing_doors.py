"""Every kind of transaction that outbox.publish takes keeps the same promises."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from onceward_producer.outbox import Outbox
from onceward_producer.work import BATCH, Published
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.errors import (
    DatabaseError,
    InvalidCommandError,
    RegistryUnavailableError,
    TransactionError,
)
from tests.support.databases import fresh_database
from tests.support.services import Services

_TOMORROW = datetime.now(UTC) + timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Command):
    """A command as `onceward schemas generate` would write it."""

    SCHEMA: ClassVar[CommandSchema] = CommandSchema(
        name="hr.Move", version=3, lane="hr.bulk", key="employee", aggregate="employee", avro={}
    )
    employee: str


class Codec:
    """Stands in for the codec, whose own tests are elsewhere; `down` is a registry that does not answer."""

    down = False

    def encode(self, command: Command) -> bytes:
        if self.down:
            raise RegistryUnavailableError
        assert isinstance(command, Move)
        return b"\0" + command.employee.encode()


class Caller:
    """A service's transaction of one kind, used from plain functions whether it is async or not."""

    def __init__(self, kind: str, dsn: str, outbox: Outbox, *, autocommit: bool = False) -> None:
        self._runner = asyncio.Runner()
        self._outbox = outbox
        self._kind, driver = kind.split("/")
        url = f"postgresql+{driver}{dsn[dsn.index('://') :]}"
        engine: dict[str, Any] = {"poolclass": NullPool} | ({"isolation_level": "AUTOCOMMIT"} if autocommit else {})
        makers: dict[str, Callable[[], Any]] = {
            "connect": lambda: psycopg.connect(dsn, autocommit=autocommit),
            "connect_async": lambda: psycopg.AsyncConnection.connect(dsn, autocommit=autocommit),
            "Session": lambda: Session(create_engine(url, **engine)),
            "Connection": lambda: create_engine(url, **engine).connect(),
            "AsyncSession": lambda: AsyncSession(create_async_engine(url, **engine)),
            "AsyncConnection": lambda: create_async_engine(url, **engine).connect().start(),
        }
        self.transaction: Any = self.wait(makers[self._kind]())

    def wait(self, value: Any) -> Any:
        return self._runner.run(_awaited(value)) if isinstance(value, Awaitable) else value

    def begin(self) -> Caller:
        if hasattr(self.transaction, "begin"):
            begun = self.transaction.begin()
            self.wait(begun.start() if isinstance(self.transaction, AsyncSession | AsyncConnection) else begun)
        return self

    def publish(self, command: Command, **options: Any) -> Published:
        result = self.wait(self._outbox.publish(self.transaction, command, **options))
        assert isinstance(result, Published)
        return result

    def publish_many(self, commands: Any, **options: Any) -> tuple[int, int]:
        published, duplicates = self.wait(self._outbox.publish_many(self.transaction, commands, **options))
        return published, duplicates

    def cancel(self, command_id: UUID) -> bool:
        return bool(self.wait(self._outbox.cancel_delayed(self.transaction, command_id)))

    def execute(self, sql: str) -> None:
        self.wait(self.transaction.execute(sql if "connect" in self._kind else text(sql)))

    def commit(self) -> None:
        self.wait(self.transaction.commit())

    def rollback(self) -> None:
        self.wait(self.transaction.rollback())

    def close(self) -> None:
        self.wait(self.transaction.close())

    def end(self) -> None:
        with suppress(Exception):
            self.close()
        self._runner.close()


KINDS = (
    "connect/psycopg",
    "connect_async/psycopg",
    "Session/psycopg",
    "Connection/psycopg",
    "AsyncSession/psycopg",
    "AsyncConnection/psycopg",
    "AsyncSession/asyncpg",
    "AsyncConnection/asyncpg",
)
Open = Callable[..., Caller]


@pytest.fixture(scope="module")
def dsn(services: Services, migrated_template: str) -> Iterator[str]:
    with fresh_database(services.dsn, migrated_template) as address:
        yield address


@pytest.fixture
def reader(dsn: str) -> Iterator[psycopg.Connection]:
    """What everybody else sees."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("truncate onceward.outbox, onceward.dedupe, onceward.delayed restart identity")
        connection.execute("drop table if exists employee; create table employee (name text)")
        yield connection


@pytest.fixture
def codec() -> Codec:
    return Codec()


@pytest.fixture(params=KINDS)
def caller(request: pytest.FixtureRequest, dsn: str, reader: psycopg.Connection, codec: Codec) -> Iterator[Open]:
    """Opens transactions of one kind."""
    opened: list[Caller] = []
    outbox = Outbox(codec)

    def make(**options: Any) -> Caller:
        opened.append(Caller(request.param, dsn, outbox, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.end()


def test_a_command_is_there_after_the_commit_and_not_before(caller: Open, reader: psycopg.Connection) -> None:
    one = caller().begin()
    run = uuid4()
    published = one.publish(Move(employee="7"), run_id=run, item="7", tenant="north")
    assert reader.execute("select from onceward.outbox").fetchall() == []
    one.commit()
    columns = "id, aggregatetype, aggregateid, type, payload, topic, version, attempt, tenant, run_id, context"
    assert reader.execute(f"select {columns} from onceward.outbox").fetchall() == [
        (published.id, "employee", "7", "hr.Move", b"\x007", "hr.bulk", 3, 1, "north", run, '{"item":"7"}')
    ]


def test_a_rollback_takes_the_command_and_the_callers_change_together(caller: Open, reader: psycopg.Connection) -> None:
    one = caller().begin()
    one.execute("insert into employee values ('Ada')")
    one.publish(Move(employee="7"), dedupe_key="7")
    one.rollback()
    assert _count(reader, "employee") == _count(reader, "onceward.outbox") == _count(reader, "onceward.dedupe") == 0


def test_a_duplicate_is_told_the_id_that_was_there_before(caller: Open, reader: psycopg.Connection) -> None:
    one = caller().begin()
    first = one.publish(Move(employee="7"), dedupe_key="7")
    one.commit()
    again = one.begin().publish(Move(employee="7"), dedupe_key="7")
    other = one.publish(Move(employee="7"), dedupe_key="8")
    one.commit()
    assert (first.duplicate, again, other.duplicate) == (False, Published(first.id, True), False)
    assert _ids(reader) == [first.id, other.id]


def test_a_key_is_free_again_when_its_window_is_over(caller: Open, reader: psycopg.Connection) -> None:
    one = caller().begin()
    first = one.publish(Move(employee="7"), dedupe_key="7", dedupe_window=timedelta(hours=1))
    one.commit()
    (left,) = reader.execute("select expires_at - now() from onceward.dedupe").fetchall()[0]
    assert timedelta(minutes=59) < left <= timedelta(hours=1)
    reader.execute("update onceward.dedupe set expires_at = now()")
    second = one.begin().publish(Move(employee="7"), dedupe_key="7")
    third = one.publish(Move(employee="7"), dedupe_key="7")
    one.commit()
    assert not second.duplicate
    assert third == Published(second.id, True)
    assert _ids(reader) == [first.id, second.id]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_of_two_publishers_with_one_key_exactly_one_counts(
    caller: Open, reader: psycopg.Connection, ending: str
) -> None:
    """The second waits for the first and takes its place if that one rolls back: a duplicate is never dropped for nothing."""
    holder, follower = caller().begin(), caller().begin()
    first = holder.publish(Move(employee="7"), dedupe_key="7")
    answers: list[Published] = []
    waiting = threading.Thread(target=lambda: answers.append(follower.publish(Move(employee="7"), dedupe_key="7")))
    waiting.start()
    _until(lambda: _is_somebody_waiting(reader))
    getattr(holder, ending)()
    waiting.join(10)
    follower.commit()
    assert answers[0].duplicate is (ending == "commit")
    assert _ids(reader) == [first.id if ending == "commit" else answers[0].id]


def test_a_delayed_command_stays_out_of_the_outbox_and_can_be_taken_back(
    caller: Open, reader: psycopg.Connection
) -> None:
    one = caller().begin()
    delayed = one.publish(Move(employee="7"), not_before=_TOMORROW, dedupe_key="7")
    due = one.publish(Move(employee="8"), not_before=datetime(2020, 1, 1, tzinfo=UTC))
    one.commit()
    assert _ids(reader) == [due.id]
    assert reader.execute("select id, not_before, aggregateid from onceward.delayed").fetchall() == [
        (delayed.id, _TOMORROW, "7")
    ]
    one.begin()
    assert one.cancel(delayed.id)
    assert not one.cancel(delayed.id)
    again = one.publish(Move(employee="7"), dedupe_key="7")
    one.commit()
    assert not again.duplicate, "its dedupe key would drop commands for one that never runs"
    assert _count(reader, "onceward.delayed") == 0


def test_many_commands_come_in_their_order_whatever_their_options(caller: Open, reader: psycopg.Connection) -> None:
    run = uuid4()
    count = 2 * BATCH + 10
    plain = [Move(employee=str(number)) for number in range(count)]
    mixed = (
        (each, {"dedupe_key": each.employee, "tenant": "south"}) if n % 2 else each for n, each in enumerate(plain)
    )
    one = caller().begin()
    assert one.publish_many(plain, run_id=run) == (count, 0)
    assert one.publish_many(mixed, run_id=run, tenant="north") == (count, 0)
    assert one.publish_many([(plain[1], {"dedupe_key": "1"}), plain[0]], run_id=run) == (1, 1)
    assert one.publish_many([]) == (0, 0)
    one.commit()
    rows = reader.execute("select aggregateid, run_id, tenant from onceward.outbox order by seq").fetchall()
    assert rows[:count] == [(str(number), run, None) for number in range(count)]
    assert rows[count:-1] == [(str(number), run, "south" if number % 2 else "north") for number in range(count)]
    assert rows[-1] == ("0", run, None)


@pytest.mark.parametrize("options", [{}, {"not_before": _TOMORROW}])
def test_of_duplicates_in_one_batch_the_first_counts(
    caller: Open, reader: psycopg.Connection, options: dict[str, Any]
) -> None:
    table = "onceward.delayed" if options else "onceward.outbox"
    pairs = [(Move(employee=str(number)), {"dedupe_key": "odd" if number % 2 else "even"}) for number in range(20)]
    one = caller().begin()
    assert one.publish_many(pairs, **options) == (2, 18)
    one.commit()
    assert one.begin().publish_many(pairs[::-1], **options) == (0, 20)
    assert one.publish(pairs[5][0], dedupe_key="odd", **options).duplicate
    one.commit()
    assert reader.execute(f"select aggregateid from {table} order by seq").fetchall() == [("0",), ("1",)]


def test_many_commands_are_published_all_or_not_at_all(caller: Open, reader: psycopg.Connection) -> None:
    """Even if the caller catches the error and commits."""
    broken = [Move(employee="7")] * (2 * BATCH) + [Move(employee="\0")]
    one = caller().begin()
    one.execute("insert into employee values ('Ada')")
    with pytest.raises(InvalidCommandError, match="employee holds a NUL") as caught:
        one.publish_many(iter(broken))
    assert f"item {2 * BATCH}" in caught.value.__notes__[0]
    one.commit()
    assert (_count(reader, "onceward.outbox"), _count(reader, "employee")) == (0, 1)


def test_a_registry_that_is_down_leaves_the_transaction_usable(
    caller: Open, reader: psycopg.Connection, codec: Codec
) -> None:
    one = caller().begin()
    one.execute("insert into employee values ('Ada')")
    codec.down = True
    with pytest.raises(RegistryUnavailableError):
        one.publish(Move(employee="7"), dedupe_key="7")
    with pytest.raises(RegistryUnavailableError):
        one.publish_many([Move(employee="7")])
    codec.down = False
    published = one.publish(Move(employee="7"), dedupe_key="7")
    one.commit()
    assert _ids(reader) == [published.id]


def test_publishing_in_autocommit_is_refused(caller: Open, reader: psycopg.Connection) -> None:
    one = caller(autocommit=True).begin()
    for attempt in (lambda: one.publish(Move(employee="7")), lambda: one.publish_many([Move(employee="7")])):
        with pytest.raises(TransactionError, match=r"(?i)autocommit.*Publish "):
            attempt()
    assert _count(reader, "onceward.outbox") == 0


def test_publishing_without_a_transaction_is_refused_where_it_could_be_lost(
    caller: Open, reader: psycopg.Connection
) -> None:
    """psycopg begins one with any statement, and its blocks commit it; SQLAlchemy's blocks roll back."""
    one = caller()
    if isinstance(one.transaction, psycopg.Connection | psycopg.AsyncConnection):
        one.publish(Move(employee="7"))
        assert _count(reader, "onceward.outbox") == 0
        one.commit()
        assert _count(reader, "onceward.outbox") == 1
        return
    with pytest.raises(TransactionError, match=r"No transaction is open.*begin\(\)"):
        one.publish(Move(employee="7"))
    one.execute("select 1")
    one.publish(Move(employee="7"))


def test_publishing_in_a_failed_transaction_is_refused_in_clear_words(caller: Open) -> None:
    one = caller().begin()
    with pytest.raises((psycopg.Error, DBAPIError)):
        one.execute("select 1 / 0")
    with pytest.raises(TransactionError, match=r"failed already.*Roll it back"):
        one.publish(Move(employee="7"))
    one.rollback()
    one.begin().publish(Move(employee="7"))


def test_publishing_on_a_closed_connection_is_refused(caller: Open) -> None:
    one = caller().begin()
    one.publish(Move(employee="7"))
    one.close()
    with pytest.raises(TransactionError, match=r"connection is closed|No transaction is open"):
        one.publish(Move(employee="7"))


@pytest.mark.parametrize("options", [{}, {"dedupe_key": "7"}])
def test_a_database_without_our_tables_says_how_to_make_them(caller: Open, options: dict[str, Any]) -> None:
    one = caller().begin()
    one.execute("alter schema onceward rename to elsewhere")
    with pytest.raises(DatabaseError, match="Run `onceward db apply`"):
        one.publish(Move(employee="7"), **options)
    one.rollback()
    one.begin().execute("alter schema onceward rename to elsewhere")
    with pytest.raises(DatabaseError, match="Run `onceward db apply`"):
        one.publish_many([Move(employee="7")], **options)
    one.rollback()


def test_batches_that_cross_do_not_deadlock(caller: Open, reader: psycopg.Connection) -> None:
    """Their keys are claimed in one order, whatever order they come in."""
    forth = [(Move(employee=str(n)), {"dedupe_key": str(n)}) for n in range(200)]
    sums: list[tuple[int, int]] = []

    def publish(one: Caller, items: list[Any]) -> None:
        for _ in range(3):
            sums.append(one.begin().publish_many(items))
            one.commit()

    threads = [threading.Thread(target=publish, args=(caller(), items)) for items in (forth, forth[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(sums) == 6
    assert sum(published for published, _ in sums) == _count(reader, "onceward.outbox") == 200


async def _awaited(value: Awaitable[Any]) -> Any:
    return await value


def _ids(reader: psycopg.Connection) -> list[UUID]:
    return [row[0] for row in reader.execute("select id from onceward.outbox order by seq").fetchall()]


def _count(reader: psycopg.Connection, table: str) -> int:
    return int(reader.execute(f"select count(*) from {table}").fetchall()[0][0])


def _is_somebody_waiting(reader: psycopg.Connection) -> bool:
    query = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    return bool(reader.execute(query).fetchall())


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
