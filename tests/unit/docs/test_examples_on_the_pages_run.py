"""The Python of docs/handlers.md is one program: its declarations are accepted, and are what the page says."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from onceward_consumer.policy import exponential
from onceward_scheduler.definitions import definitions
from onceward_scheduler.ticks import tick_at
from tests.support.handlers_page import ROOT, write_program


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_program(tmp_path_factory.mktemp("page"))


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
    batch = declared["bulk"].handlers["hr.NotifyEmployee"]
    assert (batch.mode, batch.batch_size) == ("batch", 1000)


def test_the_schedules_publish_what_the_page_says(declared: dict[str, Any]) -> None:
    schedules = definitions(declared["app"])
    morning = schedules["morning_report"]
    tick = tick_at("morning_report", datetime(2026, 5, 5, 2, tzinfo=UTC), "Asia/Almaty", None)
    assert morning.function(tick).business_date == date(2026, 5, 5)
    friday, monday = datetime(2026, 5, 8, 12, tzinfo=UTC), datetime(2026, 5, 11, 2, tzinfo=UTC)
    assert morning.rule.next_after(friday) == monday
    assert set(schedules) == {"morning_report", "sign-of-life"}
