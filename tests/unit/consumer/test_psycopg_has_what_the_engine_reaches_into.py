"""The engine uses private parts of psycopg 3.3 (connections.py), so the version is pinned; this names what a newer one lacks."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from psycopg import AsyncPipeline, Pipeline, _queries, sql
from psycopg._cursor_base import BaseCursor
from psycopg._preparing import PrepareManager
from psycopg.rows import tuple_row

from onceward_consumer.connections import HandlerCursor
from onceward_consumer.express import LightCursor

ROOT = Path(__file__).parents[3]
REMEDY = (
    "connections.py uses it: read what replaced it in this psycopg, adapt _queued and queue_command, then move the pin"
)

LIGHT_REMEDY = "express.py uses it: compare it with this psycopg, then move the pin"


def set_at_first(kind: type) -> set[str]:
    """The names that the class's constructors mention, among them the attributes that they set."""
    makers = [parent.__dict__["__init__"] for parent in kind.__mro__ if "__init__" in parent.__dict__]
    return {name for maker in makers if inspect.isfunction(maker) for name in maker.__code__.co_names}


@pytest.mark.parametrize("cursor", [psycopg.Cursor, psycopg.AsyncCursor])
@pytest.mark.parametrize(
    "name",
    ["_execute_gen", "_start_query", "_start_copy_gen", "_convert_query", "_maybe_prepare_gen", "_fetch_pipeline"],
)
def test_cursors(cursor: type, name: str) -> None:
    assert callable(getattr(cursor, name, None)), f"{cursor.__name__}.{name} is gone. {REMEDY}."


def test_the_parameters_of_what_is_overridden_and_called() -> None:
    expected = {
        "_execute_gen": ["self", "query", "params", "prepare", "binary"],
        "_maybe_prepare_gen": ["self", "pgq", "prepare", "binary"],
        "_start_query": ["self", "query"],
        "_start_copy_gen": ["self", "statement", "params"],
        "_convert_query": ["self", "query", "params"],
    }
    found = {name: list(inspect.signature(getattr(psycopg.Cursor, name)).parameters) for name in expected}
    assert found == expected, f"Parameters have changed. {REMEDY}."


@pytest.mark.parametrize("pipeline", [Pipeline, AsyncPipeline])
def test_pipelines(pipeline: type) -> None:
    assert callable(getattr(pipeline, "_communicate_gen", None)), f"_communicate_gen is gone. {REMEDY}."
    for name in ("command_queue", "result_queue"):
        assert name in set_at_first(pipeline), f"{pipeline.__name__}.{name} is gone. {REMEDY}."


@pytest.mark.parametrize("connection", [psycopg.Connection, psycopg.AsyncConnection])
def test_connections(connection: type) -> None:
    for name in ("_pipeline", "_prepared"):
        assert name in set_at_first(connection), f"{connection.__name__}.{name} is gone. {REMEDY}."
    assert callable(getattr(PrepareManager, "maintain_gen", None)), f"maintain_gen is gone. {REMEDY}."


def test_what_light_cursors_set() -> None:
    expected = {
        *(
            "_conn",
            "format",
            "_adapters",
            "arraysize",
            "_closed",
            "_results",
            "pgresult",
            "_pos",
            "_iresult",
            "_rowcount",
        ),
        *(
            "_query",
            "_tx",
            "_last_query",
            "_row_factory",
            "_make_row",
            "_pgconn",
            "_execmany_returning",
            "_statusmessage",
        ),
    }
    assert set(BaseCursor.__slots__) - {"__weakref__"} == expected, f"Cursors have other fields. {LIGHT_REMEDY}."
    connection: Any = SimpleNamespace(pgconn=None, row_factory=tuple_row, adapters=psycopg.adapters)
    light: Any = HandlerCursor(connection)
    full: Any = psycopg.Cursor(connection, row_factory=tuple_row)
    for name in expected - {"_adapters", "_tx", "_make_row"}:
        assert getattr(light, name) == getattr(full, name), f"{name} begins otherwise. {LIGHT_REMEDY}."
    assert "_adapters" in vars(LightCursor)
    assert light.adapters._dumpers == full.adapters._dumpers


def test_what_statements_are_sent_by() -> None:
    query = "select %s"
    text, formats, order, parts = _queries._query2pg(query.encode(), "utf-8")
    assert (text, len(formats), order, len(parts)) == (b"select $1", 1, None, 2), LIGHT_REMEDY
    assert _queries._query2pg(b"select %(a)s, %(a)s", "utf-8")[2] == ["a"], LIGHT_REMEDY
    assert {"_names", "_to_flush"} <= set_at_first(PrepareManager), LIGHT_REMEDY
    assert list(inspect.signature(Pipeline._process_results).parameters) == ["self", "queued", "results"], LIGHT_REMEDY
    assert {"level", "command_queue", "result_queue"} <= set_at_first(Pipeline), LIGHT_REMEDY
    assert callable(Pipeline._enqueue_sync), LIGHT_REMEDY


def test_composable_queries() -> None:
    assert sql.SQL("select 1")._obj == "select 1", f"sql.SQL._obj is gone. {REMEDY}."


def test_the_pin_admits_the_version_that_is_known_only() -> None:
    pins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert "psycopg[binary]>=3.3,<3.4" in pins
    assert psycopg.__version__.startswith("3.3."), REMEDY
