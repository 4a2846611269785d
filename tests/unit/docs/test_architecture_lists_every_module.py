"""The file map of docs/architecture.md is complete: what it names exists, and every module of the packages is named."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MAP = PAGE.partition("\n## File map\n")[2].partition("\n## ")[0]
SECTIONS = {
    title: re.findall(r"`([^`]+)`", "\n".join(line.partition(": ")[0] for line in text.splitlines()))
    for title, text in re.findall(r"^### ([\w ]+)\n(.*?)(?=^### |\Z)", MAP, re.MULTILINE | re.DOTALL)
}
PACKAGES = {init.parent.parent.name: init.parent for init in ROOT.glob("*/onceward*/__init__.py")}


def modules(package: Path) -> list[str]:
    """What is written by hand in a package; an empty __init__.py says nothing."""
    found = [*package.rglob("*.py"), *package.rglob("*.sql")]
    names = [path.relative_to(package).as_posix() for path in found if "__pycache__" not in path.parts]
    return sorted(name for name in names if not name.endswith("__init__.py") or package.name == "onceward")


def test_every_package_has_a_section() -> None:
    assert set(PACKAGES) == set(SECTIONS) - {"Around the packages"}


@pytest.mark.parametrize("part", sorted(PACKAGES))
def test_every_module_is_named(part: str) -> None:
    unnamed = [name for name in modules(PACKAGES[part]) if not any(fnmatch(name, known) for known in SECTIONS[part])]
    assert not unnamed, f"name them in docs/architecture.md, under {part}: {unnamed}"


@pytest.mark.parametrize("part", sorted(PACKAGES))
def test_every_name_is_a_module(part: str) -> None:
    there = modules(PACKAGES[part])
    gone = [known for known in SECTIONS[part] if not any(fnmatch(name, known) for name in there)]
    assert not gone, f"docs/architecture.md names what is not in {part}: {gone}"


def test_the_folders_around_the_packages_exist() -> None:
    assert [name for name in SECTIONS["Around the packages"] if not (ROOT / name).is_dir()] == []


def test_the_path_of_a_command_leads_over_modules_that_exist() -> None:
    path = PAGE.partition("\n## The path of one command\n")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/*]+\.py)`", path)
    assert len(named) > 20
    every = [file.relative_to(ROOT).as_posix() for package in PACKAGES.values() for file in package.rglob("*.py")]
    assert [name for name in named if not any(fnmatch(file, f"*{name}") for file in every)] == []
