"""The examples in docstrings are true, in every package."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MODULES = sorted(
    f"{path.parent.name}.{path.stem}" for path in ROOT.glob("*/onceward_*/*.py") if ">>>" in path.read_text()
)


def test_examples_are_found() -> None:
    assert {"onceward_consumer.ledger", "onceward_scheduler.rules", "onceward_schemas.topics"} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted
    assert not result.failed
