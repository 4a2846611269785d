"""The examples in the docstrings of onceward_schemas are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import onceward_schemas

MODULES = [module.name for module in pkgutil.iter_modules(onceward_schemas.__path__, "onceward_schemas.")]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
