"""A measured figure beside its reference and its target, and the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.measuring import DISTURBED


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of the table. `strangers` is the part of the machine that others used meanwhile."""

    name: str
    ours: float | None
    unit: str
    reference: float | None = None
    by: str = ""
    """What the reference is."""
    target: float | None = None
    of: Literal["ratio", "ours"] = "ratio"
    """What the target speaks of."""
    most: bool = False
    """Whether the target is an upper bound."""
    cpu: float | None = None
    reference_cpu: float | None = None
    """Microseconds of the process's CPU, of which a busy machine takes less away than of its speed."""
    strangers: float = 0.0
    spread: float = 0.0

    @property
    def ratio(self) -> float | None:
        if self.ours is None or not self.reference:
            return None
        return self.ours / self.reference

    @property
    def reached(self) -> bool | None:
        """None without a target, or when it was not measured."""
        value = self.ratio if self.of == "ratio" else self.ours
        if value is None or self.target is None:
            return None
        return value <= self.target if self.most else value >= self.target


HEADINGS = ("figure", "ours", "reference", "ratio", "target", "", "others")


def cells(figure: Figure) -> tuple[str, ...]:
    """The row as text, in the order of HEADINGS."""
    target = ""
    if figure.target is not None:
        unit = " x" if figure.of == "ratio" else f" {figure.unit}"
        target = f"{'≤' if figure.most else '≥'} {_number(figure.target)}{unit}"
    verdict = {None: "", True: "reached", False: "**missed**"}[figure.reached]
    absent = "" if figure.target is None else "not there yet"
    ours = absent if figure.ours is None else f"{_number(figure.ours)} {figure.unit}"
    if figure.ours is not None and figure.spread >= 0.005:
        ours += f" ±{figure.spread:.0%}"
    ours += _cpu(figure.cpu)
    reference = (
        "" if figure.reference is None else f"{_number(figure.reference)}{_cpu(figure.reference_cpu)} ({figure.by})"
    )
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    others = f"{figure.strangers:.0%}" + (" !" if figure.strangers > DISTURBED else "")
    return figure.name, ours, reference, ratio, target, verdict, others


def table(figures: Sequence[Figure]) -> str:
    """The figures as a Markdown table."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS), *map(cells, figures)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cpu(microseconds: float | None) -> str:
    return "" if microseconds is None else f", {_number(microseconds)} µs CPU"


def _number(value: float) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")
