"""`import onceward` offers these names and no others, to type checkers too, and a publisher needs no extra for its own."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import onceward

NAMES = [
    "App",
    "AsyncContext",
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
EXTRAS = ["cronsim", "prometheus_client", "rich", "stamina", "structlog", "typer", "tzdata"]


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


def test_a_publishing_install_needs_no_extra() -> None:
    code = (
        f"import sys\nfor name in {EXTRAS}: sys.modules[name] = None\n"
        "from onceward import Command, Outbox, Published, Settings, errors, load_settings, outbox\n"
        "loaded = {n.partition('.')[0] for n in sys.modules if n.startswith('onceward')}\n"
        "assert loaded <= {'onceward', 'onceward_producer', 'onceward_runtime', 'onceward_schemas'}, loaded\n"
        "from onceward import App, Context, Discard, Retry, exponential, fixed, never\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
