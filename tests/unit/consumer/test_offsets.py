"""The committed offset never passes an unfinished record, whatever the order in which records finish."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from onceward_consumer.offsets import Offsets


def test_nothing_is_committed_before_the_first_record_is_finished() -> None:
    offsets = Offsets()
    offsets.add(10)
    offsets.add(11)
    offsets.finish(11)
    assert offsets.committable() is None
    assert offsets.oldest == 10


def test_a_failed_commit_is_reported_again() -> None:
    offsets = Offsets()
    offsets.add(3)
    offsets.finish(3)
    assert offsets.committable() == 4
    assert offsets.committable() is None
    offsets.forget_report()
    assert offsets.committable() == 4


@given(
    gaps=st.lists(st.integers(1, 5), min_size=1, max_size=60),
    order=st.randoms(use_true_random=False),
    asked=st.integers(1, 7),
)
def test_the_committed_offset_is_the_end_of_the_finished_prefix(gaps: list[int], order: object, asked: int) -> None:
    records = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    finishing = list(records)
    order.shuffle(finishing)  # type: ignore[attr-defined]
    offsets = Offsets()
    position: int | None = None
    finished: set[int] = set()
    added = 0
    for step, record in enumerate(finishing):
        while added < len(records) and (records[added] <= record or added <= step):
            offsets.add(records[added])
            added += 1
        offsets.finish(record)
        finished.add(record)
        if step % asked == 0:
            position = offsets.committable() or position
            prefix = [r for n, r in enumerate(records[:added]) if set(records[: n + 1]) <= finished]
            assert position == (prefix[-1] + 1 if prefix else None)
    assert (offsets.committable() or position) == records[-1] + 1
