"""Statements that go past psycopg look to a handler as if they had not: same results, same errors, same fresh adapters."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from psycopg.adapt import Dumper
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

from onceward_consumer import express
from onceward_consumer.connections import AsyncHandlerConnection, HandlerConnection

STATEMENTS: list[tuple[str, list[Any]]] = [
    ("select %s::int", [(1,), (None,), [70_000], (2**31 - 1,)]),
    ("select %s + 1", [(1,), (70_000,), (2**40,), (Decimal("1.5"),), (1.5,)]),
    ("select pg_typeof(%s)::text", [(1,), (70_000,), ("a",), (None,), (b"\x00\xff",), (True,), (1.5,)]),
    ("select %s::text, %s::text", [("a", "b"), ("ä\u2028", None), ["x", "y"], ("a",), ("a", "b", "c"), ()]),
    ("select %(a)s::int, %(b)s::text, %(a)s::int", [{"a": 1, "b": "x"}, {"b": None, "a": 2}, {"a": 1}, (1, "x")]),
    ("select %s::jsonb", [(Jsonb({"a": [1, None]}),), ('{"b": 2}',), ("{",)]),
    ("select %s::uuid, %s::date", [(uuid.UUID(int=7), date(2020, 1, 2)), ("x", date(2020, 1, 2))]),
    ("select %s::timestamptz, %s::interval", [(datetime(2020, 1, 1, tzinfo=UTC), timedelta(seconds=3))]),
    ("select %s::int[], %s::text[]", [([1, 2], ["a", None]), ([], []), ([70_000], ["ä"]), (None, None)]),
    ("insert into things values (%s, %s)", [(1, "a"), (2, None), (3, "c"), (3, "twice"), ("x", "y"), (2**40, "big")]),
    ("insert into things values (%s, %s) returning id, name", [(11, "a"), (12, None), (11, "twice")]),
    ("update things set name = %s where id >= %s", [("n", 0), ("m", 1000)]),
    ("delete from things where id = %s", [(1,), (1,)]),
    ("select id, name from things where id > %s order by id", [(0,), (10_000,)]),
    ("select 1 where 'a%' like 'a%'", [None, None]),
    ("select 7 %% %s", [(4,), (5,)]),
    ("values (1), (2)", [None, None]),
    ("select nothing from nowhere where id = %s", [(1,)]),
    ("select 1 / %s", [(1,), (0,)]),
    ("select %s", [(object(),), ("a\x00b",), 5, "text"]),
    ("", [None, ()]),
]


def seen(connection: Any, query: str, params: Any) -> Any:
    """All that a handler can see of one statement, in a savepoint of its own."""
    try:
        with connection.transaction():
            cursor = connection.execute(query, params)
            described = None if cursor.description is None else [(c.name, c.type_code) for c in cursor.description]
            rows = cursor.fetchall() if cursor.description else None
            return cursor.rowcount, cursor.statusmessage, described, rows, cursor.nextset(), cursor.rownumber
    except Exception as error:
        return type(error), str(error).splitlines()[:1]


@contextmanager
def pipelined(dsn: str) -> Iterator[HandlerConnection]:
    """A connection as a swift group has it."""
    with HandlerConnection.connect(dsn, autocommit=True) as connection:
        connection.express.enter()
        connection.execute("begin")
        yield connection
        connection.execute("rollback")
        connection.express.leave()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each statement whether it went past psycopg."""
    found: list[bool] = []
    send = express.Express.send

    def noted(self: Any, cursor: Any, query: Any, params: Any) -> bool:
        found.append(send(self, cursor, query, params))
        return found[-1]

    monkeypatch.setattr(express.Express, "send", noted)
    return found


def test_results_and_errors_are_those_of_psycopg(database: str, taken: list[bool]) -> None:
    with psycopg.connect(database, autocommit=True) as plain, pipelined(database) as swift:
        plain.execute("begin")
        for connection in (plain, swift):
            connection.execute("create temporary table things (id int, name text check (name <> 'twice'))")
        for query, many in STATEMENTS:
            for params in many:
                for again in [many[0]] * 7 + [params] * 7:  # an error makes psycopg forget what is prepared
                    assert seen(swift, query, again) == seen(plain, query, again), (query, again)
        plain.execute("rollback")
    assert taken.count(True) > 400


def warm(connection: HandlerConnection, query: str, params: Any) -> None:
    for _ in range(7):
        connection.execute(query, params)


def test_statements_are_sent_in_the_order_in_which_they_were_executed(database: str, taken: list[bool]) -> None:
    with pipelined(database) as connection:
        connection.execute("create temporary table log (n serial, what text)")
        warm(connection, "insert into log (what) values (%s)", ("warm",))
        connection.execute("delete from log")
        for number in range(600):
            if number % 3 == 0:
                connection.execute("insert into log (what) values (%s)", (str(number),), prepare=False)
            else:
                connection.execute("insert into log (what) values (%s)", (str(number),))
        rows = connection.execute("select what from log order by n").fetchall()
        assert [int(what) for (what,) in rows] == list(range(600))
    assert taken.count(True) >= 400


def test_the_first_error_is_raised_and_what_follows_is_aborted(database: str) -> None:
    with pipelined(database) as connection:
        warm(connection, "select 1 / %s", (1,))
        connection.express.sync()
        connection.execute("savepoint s")
        failed = connection.execute("select 1 / %s", (0,))
        connection.execute("select 1 / %s", (1,))
        with pytest.raises(psycopg.errors.DivisionByZero):
            failed.fetchall()
        with pytest.raises((psycopg.errors.InFailedSqlTransaction, psycopg.errors.PipelineAborted)):
            connection.execute("select 1 / %s", (1,)).fetchall()
        connection.express.sync()
        connection.execute("rollback to savepoint s")
        assert connection.execute("select 1 / %s", (1,)).fetchall() == [(1,)]


class Shout(Dumper):
    def dump(self, obj: Any) -> bytes:
        return str(obj).upper().encode()


def test_adapters_registered_later_are_used(database: str) -> None:
    with pipelined(database) as connection:
        warm(connection, "select %s::text", ("a",))
        cursor = connection.cursor()
        cursor.adapters.register_dumper(str, Shout)
        assert cursor.execute("select %s::text", ("own",)).fetchall() == [("OWN",)]
        assert connection.execute("select %s::text", ("a",)).fetchall() == [("a",)]
        connection.adapters.register_dumper(str, Shout)
        assert connection.execute("select %s::text", ("b",)).fetchall() == [("B",)]


def test_rows_are_made_as_the_connection_or_the_cursor_says(database: str) -> None:
    with pipelined(database) as connection:
        warm(connection, "select %s::int as n", (1,))
        connection.row_factory = dict_row
        assert connection.execute("select %s::int as n", (1,)).fetchone() == {"n": 1}
        assert connection.cursor(row_factory=dict_row).execute("select %s::int as n", (2,)).fetchone() == {"n": 2}
        connection.row_factory = psycopg.rows.tuple_row
        cursor = connection.cursor()
        for number in range(3):
            assert cursor.execute("select %s::int as n", (number,)).fetchall() == [(number,)]
        cursor.close()
        with pytest.raises(psycopg.InterfaceError):
            cursor.execute("select %s::int as n", (1,))


def test_prepared_statements_that_the_server_forgot_are_prepared_again(database: str) -> None:
    with pipelined(database) as connection:
        connection.execute("create temporary table t (n int)")
        warm(connection, "select * from t where %s", (True,))
        connection.execute("deallocate all").statusmessage  # noqa: B018  it waits for the answer
        connection.execute("drop table t").statusmessage  # noqa: B018
        connection.execute("create temporary table t (n int, m int)")
        cursor = connection.execute("select * from t where %s", (True,))
        assert [column.name for column in cursor.description] == ["n", "m"]


def test_ending_the_transaction_is_refused_however_often_it_is_tried(database: str) -> None:
    with pipelined(database) as connection:
        warm(connection, "select 1", None)
        for _ in range(8):
            connection.execute("savepoint commit_")
        connection.guarded = True
        for statement in ("commit", "rollback", "select 1; commit"):
            for _ in range(8):
                with pytest.raises(Exception, match="on ctx"):
                    connection.execute(statement)
        connection.guarded = False


def test_more_than_the_socket_holds_goes_both_ways(database: str) -> None:
    with pipelined(database) as connection:
        text = "x" * 20_000
        warm(connection, "select %s::text", (text,))
        cursors = [connection.execute("select %s::text", (text,)) for _ in range(1_500)]
        assert all(cursor.fetchall() == [(text,)] for cursor in cursors)


def test_a_server_that_ends_the_session_has_the_last_word(database: str) -> None:
    with HandlerConnection.connect(database, autocommit=True) as connection:
        connection.express.enter()
        warm(connection, "select %s::int", (1,))
        connection.execute("select pg_terminate_backend(pg_backend_pid())")
        cursor = connection.execute("select %s::int", (1,))
        with pytest.raises(psycopg.OperationalError):
            cursor.fetchall()
        with pytest.raises(psycopg.OperationalError):
            connection.express.leave()
        assert connection.closed


def test_asynchronous_connections_send_the_same(database: str, taken: list[bool]) -> None:
    asyncio.run(sent_asynchronously(database))
    assert taken.count(True) >= 15


async def sent_asynchronously(database: str) -> None:
    async with await AsyncHandlerConnection.connect(database, autocommit=True) as connection, connection.pipeline():
        for number in range(20):
            cursor = await connection.execute("select %s::int", (number,))
        assert await cursor.fetchall() == [(19,)]
        [result] = [await connection.execute("select %(a)s::int", {"a": 5}) for _ in range(9)][-1:]
        assert await result.fetchone() == (5,)
