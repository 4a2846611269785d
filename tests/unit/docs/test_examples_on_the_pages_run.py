"""The Python of docs/handlers.md is one program: it passes mypy in strict mode, and its declarations are accepted."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from onceward_consumer.policy import exponential
from onceward_scheduler.definitions import definitions
from onceward_scheduler.ticks import tick_at

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# httpx is the reader's choice, not a dependency of ours.
STAND_IN = """
from __future__ import annotations
from typing import Any
class Response:
    status_code: int
    def raise_for_status(self) -> None: ...
class AsyncClient:
    def __init__(self, timeout: float) -> None: ...
    async def __aenter__(self) -> AsyncClient: return self
    async def __aexit__(self, *error: object) -> None: ...
    async def post(self, url: str, *, json: dict[str, Any], headers: dict[str, str]) -> Response: raise NotImplementedError
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    (folder / "httpx.py").write_text(STAND_IN)
    blocks = BLOCK.findall((ROOT / "docs" / "handlers.md").read_text())
    path = folder / "handlers_page.py"
    path.write_text("\n\n".join(["from __future__ import annotations", *blocks]))
    return path


def test_the_types_are_right(page: Path) -> None:
    search = os.pathsep.join([str(page.parent), str(ROOT / "examples")])
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--strict", str(page)],
        cwd=ROOT,
        env=os.environ | {"MYPYPATH": search},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def declared(page: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The page's names, once it has been run."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.syspath_prepend(str(page.parent))
    before = set(sys.modules)
    yield runpy.run_path(str(page))
    for name in set(sys.modules) - before:
        if name == "httpx" or name.split(".")[0] == "hr":
            del sys.modules[name]


def test_the_handlers_are_what_the_page_says(declared: dict[str, Any]) -> None:
    handlers = declared["app"].handlers
    assert (handlers["hr.ApplyPackage"].mode, handlers["hr.ApplyPackage"].order) == ("transactional", "retry")
    assert handlers["hr.ApplyPackage"].retry == exponential("1s", "10m", attempts=8, within="6h")
    assert (handlers["hr.NotifyEmployee"].mode, handlers["hr.NotifyEmployee"].concurrency) == ("external", 32)
    assert declared["strict"].handlers["hr.RecomputeReport"].order == "strict"


def test_the_schedules_publish_what_the_page_says(declared: dict[str, Any]) -> None:
    schedules = definitions(declared["app"])
    morning = schedules["morning_report"]
    tick = tick_at("morning_report", datetime(2026, 5, 5, 2, tzinfo=UTC), "Asia/Almaty", None)
    assert morning.function(tick).business_date == date(2026, 5, 5)
    friday, monday = datetime(2026, 5, 8, 12, tzinfo=UTC), datetime(2026, 5, 11, 2, tzinfo=UTC)
    assert morning.rule.next_after(friday) == monday
    assert set(schedules) == {"morning_report", "sign-of-life"}
