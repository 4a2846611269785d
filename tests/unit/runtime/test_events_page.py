"""docs/events.md is what events.py says, and the names keep to one form."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from prometheus_client import REGISTRY

from onceward_runtime import events

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "events.md"


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


def emitted() -> list[tuple[str, str, list[str | None]]]:
    """Every `log.emit(events.NAME, field=...)` in the packages: where, NAME, the fields."""
    found = []
    for path in sorted(ROOT.glob("*/onceward_*/**/*.py")):
        if "emit(" not in (source := path.read_text()):
            continue
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="emit"), args=[ast.Attribute(value=ast.Name("events"), attr=name)]
                ):
                    where = f"{path.relative_to(ROOT)}:{node.lineno}"
                    found.append((where, name, [keyword.arg for keyword in node.keywords]))
    return found


def test_what_is_listed_is_used() -> None:
    sources = "\n".join(p.read_text() for p in ROOT.glob("*/onceward_*/**/*.py") if p != Path(events.__file__))
    listed = {name: value for name, value in vars(events).items() if name.isupper() and not name.startswith("_")}
    names = [name for name, value in listed.items() if not isinstance(value, list)]
    assert len(names) == len(events.EVENTS) + len(events.METRICS)
    assert set(names) <= set(re.findall(r"\bevents\.(\w+)\b", sources))


def test_what_is_emitted_is_listed_with_its_fields() -> None:
    lines = emitted()
    assert lines
    for where, name, fields in lines:
        event = getattr(events, name, None)
        assert isinstance(event, events.Event), f"{where}: no event {name}"
        unknown = {field for field in fields if field is not None} - set(event.fields)
        assert not unknown, f"{where}: {name} has no field {unknown}"
