"""`python -m tests.chaos`: trials on real servers of their own, for each mode and order asked for; exit code 1 on any finding."""

from __future__ import annotations

import argparse
import sys
import tempfile
import typing
from pathlib import Path
from typing import Final

from onceward_consumer.handlers import Order
from tests.chaos.handlers import MODES
from tests.chaos.plan import Plan
from tests.chaos.run import COLUMNS, Report, run
from tests.chaos.servers import own_servers

_DOORS: Final = 12
"""More than processes live at once: workers that leave and relays included."""


def main() -> int:
    arguments = _arguments()
    logs = arguments.logs or Path(tempfile.mkdtemp(prefix="onceward-chaos-"))
    print(f"Logs are kept in {logs}.")
    reports: list[Report] = []
    plans = [
        Plan(
            mode=mode,
            order=order,
            commands=arguments.commands,
            keys=arguments.keys,
            seconds=arguments.seconds,
            seed=seed,
            workers=arguments.workers,
        )
        for seed in arguments.seed
        for mode in arguments.mode
        for order in arguments.order
    ]
    try:
        for plan in plans:
            with own_servers(_DOORS) as servers:  # fresh ones, so that no trial is slowed by what another left
                report = run(plan, servers, logs / str(plan).replace(" ", "-"), only=frozenset(arguments.attack))
            reports.append(report)
            print(" · ".join(f"{name} {count}" for name, count in sorted(report.attacks.items())))
            print(_table([report]), flush=True)
    finally:
        if len(reports) > 1:
            print(_table(reports), flush=True)
    failed = sum(bool(report.problems) for report in reports)
    print(f"{len(reports) - failed} passed, {failed} failed")
    return 1 if failed or len(reports) < len(plans) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.chaos", description=__doc__)
    orders = typing.get_args(Order)
    parser.add_argument("--mode", nargs="+", choices=list(MODES), default=list(MODES))
    parser.add_argument("--order", nargs="+", choices=orders, default=list(orders))
    parser.add_argument("--commands", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=300, help="how long the attacks last")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--attack", nargs="+", default=[], help="only these, for instance 'freeze worker'")
    parser.add_argument("--logs", type=Path)
    return parser.parse_args()


def _table(reports: list[Report]) -> str:
    rows = [COLUMNS, *(report.row() for report in reports)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    sys.exit(main())
