"""The command lines, metrics and log events in the documents exist: verbs with their options, metrics that are set."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from onceward_cli.verbs import VERBS, load
from onceward_runtime import events

ROOT = Path(__file__).parents[3]
OPERATIONS = ROOT / "docs" / "operations.md"
EVENTS = Path(events.__file__)
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
FENCE = re.compile(r"^```shell[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"```.*?```", re.DOTALL)


def command_lines(page: str) -> list[str]:
    """What begins with `onceward`, in shell blocks and in code within the text."""
    text = (ROOT / page).read_text()
    typed = [line.partition("#")[0].strip(" &") for block in FENCE.findall(text) for line in block.splitlines()]
    inline = [re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", CODE.sub("", text))]
    inner = [found for line in typed for found in re.findall(r"\$\((onceward [^)]*)\)", line)]
    return [line for line in [*typed, *inline, *inner] if line.startswith("onceward ")]


def problem(line: str) -> str | None:
    """What is wrong with a command line, as far as its words show."""
    words = [word for word in shlex.split(line.replace("…", " ").replace("|", " "))[1:] if word]
    if words[0].startswith("-"):
        return None
    if words[0] not in VERBS:
        return f"no verb {words[0]}"
    command: Any = load(words[0])
    rest = words[1:]
    while rest and hasattr(command, "commands") and rest[0] in command.commands:
        command, rest = command.commands[rest[0]], rest[1:]
    if rest and hasattr(command, "commands") and not rest[0].startswith("-"):
        return f"no {rest[0]}"
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word.partition("=")[0] for word in rest if word.startswith("-") and word != "--"]
    return next((f"no option {name}" for name in unknown if name not in known | {"--help", "-h"}), None)


@pytest.mark.parametrize("page", PAGES)
def test_the_command_lines_of(page: str) -> None:
    assert {line: found for line in command_lines(page) if (found := problem(line))} == {}


def test_command_lines_are_found_and_wrong_ones_noticed() -> None:
    assert len(command_lines("docs/operations.md")) > 15
    assert problem("onceward dlq relpay ID") == "no relpay"
    assert problem("onceward dlq replay ID --becuase x") == "no option --becuase"


def unused(names: set[str], maker: str) -> list[str]:
    """Those of the names that events.py does not list, or whose constant no other module uses."""
    listed = dict(re.findall(rf'^([A-Z_]+) = _(?:{maker})\(\s*"([\w.]+)"', EVENTS.read_text(), re.MULTILINE))
    constants = {name: constant for constant, name in listed.items()}
    sources = "\n".join(path.read_text() for path in ROOT.glob("*/onceward_*/**/*.py") if path != EVENTS)
    return [n for n in sorted(names) if not re.search(rf"\bevents\.{constants.get(n, '-')}\b", sources)]


def test_every_metric_that_is_recommended_is_set_somewhere() -> None:
    ours = {metric.name for metric in events.METRICS}
    named = set(re.findall(r"`(?:sum\()?(onceward_[a-z_]+)", OPERATIONS.read_text()))
    assert len(named) > 8
    assert named <= ours
    assert unused(named, "counter|gauge|histogram") == []


def test_every_log_event_that_is_named_is_written_somewhere() -> None:
    families = {event.name.partition(".")[0] for event in events.EVENTS}
    named = {n for n in re.findall(r"`([a-z_]+\.[a-z_]+)`", OPERATIONS.read_text()) if n.partition(".")[0] in families}
    assert len(named) > 4
    assert unused(named, "event") == []
