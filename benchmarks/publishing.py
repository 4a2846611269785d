"""The figures of publish.py: it measures in its own process, in rounds of its own."""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.measuring import Budget, Values, Watch, child, rounds, watched
from benchmarks.places import Place


def figures(place: Place, budget: Budget) -> list[Figure]:
    """What one command costs the caller, and how fast many are written."""
    count = budget.count(20_000)

    def sample(watch: Watch) -> Values:
        with place.database() as dsn, watched(watch):
            return dict(child("benchmarks.publish", str(count), "--json", environment=place.environment(dsn)))

    found = rounds({"publish": sample}, budget, times=1)["publish"]
    return [
        Figure(
            name="publish(): CPU added to the caller's transaction",
            ours=found.median("publish") - found.median("insert by hand"),
            unit="µs",
            target=60,
            of="ours",
            most=True,
            strangers=found.strangers,
        ),
        Figure(
            name="publish(): CPU in all",
            ours=found.median("publish"),
            unit="µs",
            reference=found.median("insert by hand"),
            by="insert by hand, Avro encoding included",
            strangers=found.strangers,
        ),
        Figure(
            name="publish_many()",
            ours=found.median("publish_many, an item each"),
            unit="rows/s",
            reference=found.median("COPY by hand"),
            by="COPY by hand",
            target=40_000,
            of="ours",
            strangers=found.strangers,
        ),
    ]
