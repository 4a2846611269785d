"""docs/promises.md has a row for each requirement, and what its rows and those of docs/architecture.md name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
COUNT = 116


class Row(NamedTuple):
    """One requirement."""

    number: int
    requirement: str
    where: str
    proof: str


ROWS = [
    Row(int(number), *(cell.strip() for cell in cells.split("|")))
    for number, cells in re.findall(
        r"^\| R(\d+) \|([^|]+\|[^|]+\|[^|]+)\|$", (ROOT / "docs" / "promises.md").read_text(), re.MULTILINE
    )
]


def paths(text: str) -> list[str]:
    """Files named in code; a test with its function behind a double colon."""
    return re.findall(r"`([\w./-]+\.(?:py|sql|md)(?:::\w+)?)`", text)


def exists(name: str) -> bool:
    """Whether the file is there, and in it the test."""
    file, _, function = name.partition("::")
    path = ROOT / file
    if not path.is_file():
        return False
    tree = ast.parse(path.read_text()) if function else None
    return tree is None or any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body)


def test_every_requirement_has_one_row_in_order() -> None:
    assert [row.number for row in ROWS] == list(range(1, COUNT + 1))


@pytest.mark.parametrize("row", ROWS, ids=[f"R{row.number}" for row in ROWS])
def test_a_row_names_what_exists_or_says_not_yet(row: Row) -> None:
    assert row.requirement
    assert [name for name in paths(row.where + row.proof) if not exists(name)] == []
    proving = [name for name in paths(row.proof) if "::" in name]
    assert proving or row.proof.startswith("not yet")
    assert not proving or paths(row.where), "what is proved lives somewhere"


def test_the_rules_of_the_architecture_are_held_by_tests_that_exist() -> None:
    rules = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Non-obvious, easy to get wrong\n")[2]
    lines = [line for line in rules.splitlines() if line.startswith("| ") and not line.startswith("| Rule")]
    assert len(lines) > 20
    for line in lines:
        *_, held_by, _ = line.split("|")
        assert paths(held_by) or "no test of its own" in held_by, line
        assert [name for name in paths(held_by) if not exists(name)] == [], line


def test_what_does_not_exist_is_noticed() -> None:
    assert exists("tests/unit/docs/test_promises_name_their_proof.py::test_what_does_not_exist_is_noticed")
    assert not exists("tests/unit/docs/test_promises_name_their_proof.py::test_nothing")
    assert not exists("consumer/onceward_consumer/nothing.py")
