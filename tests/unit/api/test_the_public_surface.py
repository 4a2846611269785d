"""`import onceward` offers these names and no others, to type checkers too."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import onceward

NAMES = [
    "App",
    "AsyncBatchContext",
    "AsyncContext",
    "BatchContext",
    "Breaker",
    "Ceiling",
    "Command",
    "Context",
    "Discard",
    "Envelope",
    "OncewardError",
    "Outbox",
    "Published",
    "PublishedMany",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Runs",
    "Settings",
    "StartedRun",
    "Tick",
    "errors",
    "exponential",
    "fixed",
    "load_settings",
    "never",
    "outbox",
]


def test_the_names_are_these() -> None:
    assert dir(onceward) == onceward.__all__ == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_there(name: str) -> None:
    found = getattr(onceward, name)
    assert found is not None
    if inspect.isclass(found) or inspect.isfunction(found):
        assert found.__name__ == {"load_settings": "load"}.get(name, name)


def test_type_checkers_see_the_same() -> None:
    tree = ast.parse(Path(onceward.__file__).read_text())
    seen = {
        alias.asname or alias.name: f"{node.module}:{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onceward_")
        for alias in node.names
    }
    homes = {name: home for name, home in onceward._HOMES.items() if name != "errors"}
    assert seen == homes | {"errors": "onceward_schemas:errors"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Outbux'"):
        _ = onceward.Outbux
