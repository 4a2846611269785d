"""docs/events.md is what events.py says, and the names keep to one form."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import REGISTRY

from onceward_runtime import events

PAGE = Path(__file__).parents[3] / "docs" / "events.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == events.page(), "run: python -m onceward_runtime.events > docs/events.md"


def test_names_are_unique_and_of_one_form() -> None:
    names = [event.name for event in events.EVENTS]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", name) for name in names)
    assert all(metric.name.startswith("onceward_") for metric in events.METRICS)
    assert all(metric.name.endswith("_total") == (metric.kind == "counter") for metric in events.METRICS)


def test_every_metric_is_registered() -> None:
    served = {family.name for family in REGISTRY.collect()}
    assert {metric.name.removesuffix("_total") for metric in events.METRICS} <= served


def test_no_event_has_a_field_for_payloads() -> None:
    assert not {"payload", "value", "body", "command"} & {field for event in events.EVENTS for field in event.fields}
