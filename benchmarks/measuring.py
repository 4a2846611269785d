"""Times, CPU and the load that strangers put on the machine meanwhile; rounds that take turns and are repeated if disturbed."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

DISTURBED: Final = 0.15
"""A sample during which others used more of the machine than this is made once more, and marked if that is no better."""
_CALM_SECONDS: Final = 5
_TICK: Final = os.sysconf("SC_CLK_TCK")
_CORES: Final = os.cpu_count() or 1
Values = dict[str, float]


@dataclass
class Sample:
    """What one variant yielded once."""

    values: Values
    strangers: float


@dataclass
class Series:
    """The samples of one variant."""

    samples: list[Sample] = field(default_factory=list)

    def median(self, name: str) -> float:
        return statistics.median(sample.values[name] for sample in self.samples)

    def spread(self, name: str) -> float:
        """Half the distance between the extremes, as a part of the median."""
        found = [sample.values[name] for sample in self.samples]
        return (max(found) - min(found)) / 2 / self.median(name) if self.median(name) else 0.0

    @property
    def strangers(self) -> float:
        return statistics.median(sample.strangers for sample in self.samples)


@dataclass
class Budget:
    """How often things are measured, with how much, and how long disturbed samples may take once more."""

    rounds: int
    scale: float
    spare_seconds: float
    """For waiting until others are calm, and for making disturbed samples once more."""
    watch: bool

    def count(self, full: int) -> int:
        """A number of rows or commands, smaller in short runs."""
        return max(200, int(full * self.scale) // 100 * 100)

    def seconds(self, full: float) -> float:
        return max(2.0, full * self.scale)


class Watch:
    """What others used between begin() and end(), as a part of the whole machine.

    Ours are this process and its descendants, the services among them. Linux only; elsewhere nothing is found.
    """

    def __init__(self) -> None:
        self._began: tuple[float, float, float] | None = None
        self.strangers = 0.0

    def begin(self) -> None:
        self._began = (time.perf_counter(), machine_seconds(), tree_seconds(os.getpid()))

    def end(self) -> None:
        if self._began is None:
            return
        wall, busy, ours = self._began
        wall = time.perf_counter() - wall
        others = machine_seconds() - busy - (tree_seconds(os.getpid()) - ours)
        self.strangers = max(0.0, others / (wall * _CORES)) if wall else 0.0


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Look at strangers while the body runs."""
    watch.begin()
    try:
        yield
    finally:
        watch.end()


Variant = Callable[[Watch], Values]
"""Makes one sample; it tells the watch when its timing begins and ends."""


def rounds(variants: Mapping[str, Variant], budget: Budget, times: int | None = None) -> dict[str, Series]:
    """Each variant once in each round, so that drifts of the machine meet all alike."""
    found = {name: Series() for name in variants}
    for _ in range(times or budget.rounds):
        for name, variant in variants.items():
            _wait_for_calm(budget)
            sample = _told(name, _sample(variant, budget.watch))
            if sample.strangers > DISTURBED and budget.spare_seconds > 0:
                began = time.monotonic()
                again = _told(name, _sample(variant, budget.watch))
                sample = min(sample, again, key=lambda one: one.strangers)
                budget.spare_seconds -= time.monotonic() - began
            found[name].samples.append(sample)
    return found


def _wait_for_calm(budget: Budget) -> None:
    """A few seconds before a sample, at most."""
    for _ in range(_CALM_SECONDS):
        if not budget.watch or budget.spare_seconds <= 0:
            return
        watch = Watch()
        with watched(watch):
            time.sleep(1)
        if watch.strangers <= DISTURBED:
            return
        budget.spare_seconds -= 1


def _sample(variant: Variant, watch_strangers: bool) -> Sample:
    watch = Watch()
    values = variant(watch)
    return Sample(values, watch.strangers if watch_strangers else 0.0)


def _told(name: str, sample: Sample) -> Sample:
    values = ", ".join(
        f"{key} {value:,.0f}" if value >= 1000 else f"{key} {value:.3g}" for key, value in sample.values.items()
    )
    print(f"  {name:<34} {values}  (others {sample.strangers:.0%})", file=sys.stderr, flush=True)
    return sample


def child(module: str, *arguments: str, environment: Mapping[str, str], timeout: float = 180) -> Any:
    """Run a module in a process of its own; what its last line of output says, as JSON."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=timeout,
    )
    return json.loads(done.stdout.strip().splitlines()[-1])


def percentile(values: list[float], part: float) -> float:
    """The value below which `part` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


def machine_seconds() -> float:
    """CPU seconds that the whole machine has spent, time stolen by a hypervisor included."""
    try:
        first = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICK


def tree_seconds(root: int) -> float:
    """CPU seconds of a process, its descendants, and those of them that have ended."""
    parents: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        pid = int(entry.parent.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        used[pid] = sum(map(int, fields[11:15]))
    total, todo = 0, [root]
    while todo:
        pid = todo.pop()
        total += used.get(pid, 0)
        todo += parents.get(pid, [])
    return total / _TICK
