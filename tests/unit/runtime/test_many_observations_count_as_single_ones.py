"""Observing many amounts at once leaves a histogram as observing each does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from onceward_runtime.observations import observe_all

BUCKETS = (0.001, 0.01, 0.1, 1.0)


def histogram() -> tuple[Histogram, CollectorRegistry]:
    registry = CollectorRegistry()
    return Histogram("h", "", ["lane"], buckets=BUCKETS, registry=registry).labels("a"), registry


def told(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    [metric] = registry.collect()
    return {
        (sample.name, sample.labels.get("le", "")): round(sample.value, 9)
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }


@given(st.lists(st.sampled_from([0.0, *BUCKETS, 0.0005, 0.5, 3.0]), max_size=40))
def test_it_counts_as_single_ones(amounts: list[float]) -> None:
    one, first = histogram()
    other, second = histogram()
    for amount in amounts:
        one.observe(amount)
    observe_all(other, amounts)
    assert told(first) == told(second)


def test_the_private_parts_are_there() -> None:
    found, _ = histogram()
    assert len(found._upper_bounds) == len(found._buckets) == len(BUCKETS) + 1
    before = found._sum.get()
    found._sum.inc(2.0)
    assert found._sum.get() == before + 2.0
