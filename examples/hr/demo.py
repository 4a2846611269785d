"""The human-resources scenario on real services, with everything going wrong that may, and the proof that nothing did.

    python -m examples.hr.demo [--employees 8000] [--failing 12] [--outage 20] [--capture docs/images/demo.svg]

Exit code 0 only when every line of the table holds.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.hr.checks import Check
from examples.hr.scenario import Plan, Scenario
from examples.hr.view import View
from onceward_devstack.stack import Stack
from onceward_schemas.errors import OncewardError

_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that a drawing would fetch from elsewhere."""


def main() -> int:
    """Run the demo and return its exit code."""
    options = _options()
    console = Console(record=options.capture is not None, width=112 if options.capture else None)
    began = time.monotonic()
    plan = Plan(employees=options.employees, failing=options.failing, outage_seconds=options.outage)
    folder = Path(tempfile.mkdtemp(prefix="onceward-demo-"))
    try:
        with ExitStack() as stack:
            console.print(f"Starting Kafka, PostgreSQL and a schema registry; logs in {folder}")
            services = stack.enter_context(Stack(folder / "services"))
            view = stack.enter_context(View(console))
            scenario = stack.enter_context(Scenario(services, folder, plan, view))
            checks = scenario.play()
    except OncewardError as error:
        console.print(f"[red]{error.message}[/red] {error.remedy or ''}")
        return 1
    held = _print(console, checks, time.monotonic() - began)
    if options.capture is not None:
        options.capture.parent.mkdir(parents=True, exist_ok=True)
        drawing = console.export_svg(title="make demo")
        options.capture.write_text(_FONT_FACE.sub("", drawing), encoding="utf-8")
    if held:
        shutil.rmtree(folder, ignore_errors=True)
    else:
        console.print(f"What the processes said is in {folder}.")
    return 0 if held else 1


def _print(console: Console, checks: list[Check], seconds: float) -> bool:
    table = Table(
        "", "what must be true", "expected", "found", title=f"Proved in {seconds:.0f} s", title_justify="left"
    )
    for check in checks:
        mark = "[green]✓[/green]" if check.holds else "[red]✗[/red]"
        table.add_row(mark, check.statement, _short(check.expected), _short(check.found))
    console.print(table)
    return all(check.holds for check in checks)


def _short(value: object) -> str:
    match value:
        case (single,):
            return _short(single)
        case tuple():
            return ", ".join(map(_short, value))
        case list() if len(value) > 4:
            return f"{len(value)} employees"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case _:
            return str(value)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--employees", type=int, default=8000, help="how many change at once (default 8000)")
    parser.add_argument("--failing", type=int, default=12, help="how many have no mailbox (default 12)")
    parser.add_argument("--outage", type=float, default=20, help="seconds the mail gateway answers 503 (default 20)")
    parser.add_argument("--capture", type=Path, help="write what the terminal shows to this SVG file")
    options = parser.parse_args()
    if not 0 <= options.failing <= options.employees:
        parser.error(f"--failing must be between 0 and --employees, not {options.failing}")
    return options


if __name__ == "__main__":
    sys.exit(main())
