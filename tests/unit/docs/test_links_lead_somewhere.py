"""Every relative link and picture in the Markdown files leads to a file, and to a heading where it names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HIDDEN = (".venv", ".onceward", "build", "dist", "node_modules")
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in ROOT.rglob("*.md")
    if not any(part in HIDDEN or part.startswith(".") for part in path.relative_to(ROOT).parts)
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def links(page: str) -> list[str]:
    """Targets outside of code, but for those on other sites."""
    text = CODE.sub("", (ROOT / page).read_text())
    return [target for target in LINK.findall(text) if not re.match(r"[a-z]+:", target)]


def anchors(path: Path) -> set[str]:
    """The headings of a page as GitHub writes them in links."""
    heads = re.findall(r"^#+ (.+)$", CODE.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def broken(page: str) -> list[str]:
    found = []
    for target in links(page):
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            found.append(target)
    return found


def test_pages_are_found() -> None:
    assert {"README.md", "docs/architecture.md", "docs/operations.md"} <= set(PAGES)


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of(page: str) -> None:
    assert broken(page) == []


def test_what_the_code_tells_people_to_read_exists() -> None:
    named = {
        (source.relative_to(ROOT).as_posix(), page)
        for source in ROOT.glob("*/onceward*/**/*.py")
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", source.read_text())
    }
    assert named
    assert [(source, page) for source, page in sorted(named) if not (ROOT / page).is_file()] == []
