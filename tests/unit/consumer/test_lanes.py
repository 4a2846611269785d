"""One runner per key always, in order of arrival, and no key is ever forgotten."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onceward_consumer.deliveries import Delivery
from onceward_consumer.lanes import Lanes, Run


class Tenure:
    def __init__(self) -> None:
        self.active = True

    def finish(self, offset: int) -> None:
        pass


def delivery(key: str | None, number: int, *, kind: str = "sync", tenure: Tenure | None = None) -> Delivery:
    found = Delivery(
        topic="t", partition=0, offset=number, timestamp_ms=0, key=None if key is None else key.encode(), payload=b"",
        headers=[], lane="t", assignment=tenure, handlers={},
    )  # fmt: skip
    found.kind = kind
    return found


def numbers(runs: list[Run]) -> list[int]:
    return [d.offset for run in runs for d in run.deliveries]


def test_a_busy_key_is_not_handed_out_again() -> None:
    lanes = Lanes()
    for number in range(3):
        lanes.add(delivery("a", number))
    [run], _ = lanes.take("sync", 1)
    lanes.add(delivery("a", 3))
    assert lanes.take("sync", 10) == ([], [])
    lanes.release(run)
    assert numbers(lanes.take("sync", 10)[0]) == [1, 2, 3]


def test_records_without_a_key_wait_for_nobody() -> None:
    lanes = Lanes()
    for number in range(3):
        lanes.add(delivery(None, number))
    runs, _ = lanes.take("sync", 10)
    assert [len(run.deliveries) for run in runs] == [1, 1, 1]
    for run in runs:
        lanes.release(run)
    assert lanes.keys == 0


def test_a_key_of_two_executors_goes_from_one_to_the_other_in_order() -> None:
    lanes = Lanes()
    for number, kind in enumerate(["sync", "async", "sync"]):
        lanes.add(delivery("a", number, kind=kind))
    assert lanes.take("async", 10) == ([], [])
    [run], _ = lanes.take("sync", 10)
    assert numbers([run]) == [0]
    lanes.release(run)
    [run], _ = lanes.take("async", 10)
    assert numbers([run]) == [1]
    lanes.release(run)
    assert numbers(lanes.take("sync", 10)[0]) == [2]


def test_a_partition_that_comes_back_waits_for_the_old_runner() -> None:
    lanes, old, new = Lanes(), Tenure(), Tenure()
    lanes.add(delivery("a", 0, tenure=old))
    lanes.add(delivery("a", 1, tenure=old))
    [run], _ = lanes.take("sync", 1)
    old.active = False
    assert [d.offset for d in lanes.drop_revoked()] == [1]
    lanes.add(delivery("a", 0, tenure=new))
    assert lanes.take("sync", 10) == ([], [])
    lanes.release(run)
    assert numbers(lanes.take("sync", 10)[0]) == [0]


def test_what_must_run_again_comes_first() -> None:
    lanes = Lanes()
    for number in range(4):
        lanes.add(delivery("a", number))
    [run], _ = lanes.take("sync", 3, per_key=3)
    lanes.release(run, run.deliveries[1:])
    assert numbers(lanes.take("sync", 10, per_key=10)[0]) == [1, 2, 3]


def test_a_resting_key_comes_when_its_time_has_come() -> None:
    lanes = Lanes()
    lanes.add(delivery("a", 0))
    [run], _ = lanes.take("sync", 1)
    lanes.release(run, run.deliveries, at=5.0)
    assert lanes.next_wake() == 5.0
    assert not lanes.wake(4.9)
    assert lanes.take("sync", 1) == ([], [])
    assert lanes.wake(5.0)
    assert numbers(lanes.take("sync", 1)[0]) == [0]


def test_a_key_that_must_be_alone_is_alone() -> None:
    lanes = Lanes()
    for key in "abc":
        lanes.add(delivery(key, ord(key)))
    lanes.add(delivery("b", 1000))
    [run, *others], _ = lanes.take("sync", 10)
    for other in others:
        lanes.release(other, other.deliveries)
    run.queue.alone = True
    lanes.release(run, run.deliveries)
    sizes = []
    for _ in range(2):
        runs, _ = lanes.take("sync", 10)
        sizes.append(sorted(len(r.deliveries) for r in runs))
        assert len(runs) == 1 or not any(r.queue.alone for r in runs)
    assert sorted(sizes) == [[1], [1, 2]]


class LanesMachine(RuleBasedStateMachine):
    """Anything that the poller, the executors and rebalances can do to the lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes = Lanes()
        self.tenures = [Tenure(), Tenure()]
        self.number = 0
        self.running: list[Run] = []
        self.open: dict[int, Delivery] = {}
        self.last: dict[Any, int] = {}
        self.now = 0.0

    @rule(key=st.sampled_from(["a", "b", "c", None]), kind=st.sampled_from(["sync", "async"]), tenure=st.integers(0, 1))
    def add(self, key: str | None, kind: str, tenure: int) -> None:
        self.number += 1
        found = delivery(key, self.number, kind=kind, tenure=self.tenures[tenure])
        self.open[self.number] = found
        self.lanes.add(found)

    @rule(kind=st.sampled_from(["sync", "async"]), limit=st.integers(1, 6))
    def take(self, kind: str, limit: int) -> None:
        runs, dropped = self.lanes.take(kind, limit)
        assert len(numbers(runs)) <= limit
        for gone in dropped:
            assert not gone.assignment.active  # type: ignore[union-attr]
            del self.open[gone.offset]
        busy = {r.queue.address for r in self.running if r.queue.address is not None}
        for run in runs:
            if run.queue.address is not None:
                assert run.queue.address not in busy
                busy.add(run.queue.address)
            for found in run.deliveries:
                assert found.kind == kind
                assert found.assignment.active  # type: ignore[union-attr]
                if run.queue.address is not None:
                    assert found.offset > self.last.get(run.queue.address, 0)
                    self.last[run.queue.address] = found.offset
        self.running += runs

    @precondition(lambda self: self.running)
    @rule(data=st.data(), rest=st.booleans())
    def release(self, data: st.DataObject, rest: bool) -> None:
        run = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        done = data.draw(st.integers(0, len(run.deliveries)))
        again = run.deliveries[done:]
        for found in run.deliveries[:done]:
            del self.open[found.offset]
        if run.queue.address is not None and again:
            self.last[run.queue.address] = again[0].offset - 1
        self.lanes.release(run, again, at=self.now + 1 if rest and again else None)

    @rule()
    def wait(self) -> None:
        self.now += 1
        self.lanes.wake(self.now)

    @rule(which=st.integers(0, 1))
    def revoke(self, which: int) -> None:
        self.tenures[which].active = False
        self.tenures[which] = Tenure()
        for gone in self.lanes.drop_revoked():
            del self.open[gone.offset]

    @invariant()
    def counts_agree(self) -> None:
        assert len(self.lanes) + len(numbers(self.running)) == len(self.open)

    def teardown(self) -> None:
        """Left alone, everything runs, and nothing is remembered."""
        for _ in range(1000):
            for run in self.running:
                self.lanes.release(run)
            self.running = []
            self.lanes.wake(1e9)
            for kind in ("sync", "async"):
                self.running += self.lanes.take(kind, 100)[0]
            if not self.running and not len(self.lanes):
                break
        assert len(self.lanes) == 0
        assert self.lanes.keys == 0


TestLanes = LanesMachine.TestCase
TestLanes.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
