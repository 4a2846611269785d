"""`make bench`: measures what exists beside references written by hand, in one run, and prints figures and ratios."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import consuming, end_to_end, machine, publishing, relaying, ticking
from benchmarks.figures import Figure, table
from benchmarks.measuring import DISTURBED, Budget
from benchmarks.places import Place, place

Part = Callable[[Place, Budget], list[Figure]]
PARTS: dict[str, tuple[Part, ...]] = {
    "publish": (publishing.figures,),
    "relay": (relaying.backlog,),
    "latency": (relaying.latency, end_to_end.latency),
    "consumer": (consuming.throughput, consuming.outside, end_to_end.failures, end_to_end.long_queue, consuming.memory),
    "scheduler": (ticking.figures,),
}
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def main() -> None:
    given = arguments()
    began = time.monotonic()
    budget = Budget(
        rounds=1 if given.short else 3,
        scale=0.2 if given.short else 1.0,
        spare_seconds=given.patience,
        watch=not given.given,
    )
    figures: list[Figure] = []
    with place(given.given) as where:
        facts = machine.facts(where)
        for name in given.only or PARTS:
            for part in PARTS[name]:
                print(f"{name}: {part.__module__}.{part.__name__}", file=sys.stderr, flush=True)
                figures += part(where, budget)
    text = report(figures, facts, budget, time.monotonic() - began, given)
    print(text)
    if given.write:
        write(given.write, text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--short", action="store_true", help="One round with a fifth of the rows: about 3 minutes.")
    parser.add_argument("--only", action="append", choices=PARTS, help="This part; may be repeated.")
    parser.add_argument(
        "--patience",
        type=float,
        default=100,
        metavar="SECONDS",
        help="For awaiting calm and repeating what was disturbed.",
    )
    parser.add_argument("--given", action="store_true", help="Use the services of the ONCEWARD_* settings.")
    parser.add_argument("--write", type=Path, metavar="FILE", help="Put the result between the markers of this file.")
    return parser.parse_args()


def report(figures: list[Figure], facts: list[str], budget: Budget, seconds: float, given: argparse.Namespace) -> str:
    """What was measured, where and when, in Markdown."""
    rounds = "one round" if budget.rounds == 1 else f"medians of {budget.rounds} rounds that took turns"
    reached = [figure.reached for figure in figures if figure.reached is not None]
    lines = [
        f"Measured on {datetime.now(UTC):%Y-%m-%d}, {datetime.now(UTC):%H:%M} UTC, in {seconds / 60:.0f} minutes: {rounds}."
    ]
    lines += ["", *(f"- {fact}" for fact in facts), "", table(figures), ""]
    lines.append(f"{sum(reached)} of {len(reached)} targets reached.")
    if given.given:
        lines.append("The services were given ones, so what others did to the machine meanwhile was not seen.")
    disturbed = sum(figure.strangers > DISTURBED for figure in figures)
    if disturbed:
        lines.append(
            f"{disturbed} figures, marked `!`, were taken while others used more than {DISTURBED:.0%} of the machine."
        )
    return "\n".join(lines)


def write(file: Path, text: str) -> None:
    """Replace what is between the markers, or append it with them."""
    found = file.read_text() if file.exists() else ""
    before, begin, rest = found.partition(BEGIN)
    _, _, after = rest.partition(END)
    file.write_text(f"{before if begin else found}{BEGIN}\n{text}\n{END}{after if begin else chr(10)}")


if __name__ == "__main__":
    main()
