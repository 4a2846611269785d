"""One runner per key always, in order of arrival, and no key is ever forgotten."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onceward_consumer.deliveries import Delivery, Kind
from onceward_consumer.lanes import Lanes, Run
from onceward_consumer.throttles import Overflow
from onceward_consumer.turns import LaneRules


class Tenure:
    def __init__(self) -> None:
        self.active = True

    def finish(self, offset: int) -> None:
        pass


def delivery(
    key: str | None, number: int, *, kind: str = "sync", lane: str = "t", tenant: str | None = None,
    tenure: Tenure | None = None,
) -> Delivery:  # fmt: skip
    found = Delivery(
        topic="t", partition=0, offset=number, timestamp_ms=0, key=None if key is None else key.encode(), payload=b"",
        headers=[], lane=lane, assignment=tenure, handlers={},
    )  # fmt: skip
    found.kind = kind
    found.envelope = cast("Any", SimpleNamespace(tenant=tenant))
    found.handler = cast("Any", SimpleNamespace(mode="transactional", executor=None, is_async=kind == "async"))
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


def test_after_a_revocation_a_key_is_its_new_heads_executors() -> None:
    lanes, old = Lanes(), Tenure()
    lanes.add(delivery("a", 0, kind="async", tenure=old))
    old.active = False
    lanes.drop_revoked()
    lanes.add(delivery("a", 0, kind="sync", tenure=Tenure()))
    assert numbers(lanes.take("sync", 1)[0]) == [0]


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


class Gate:
    """A throttle with as many permits for each limit as one says; the limit of a command is its tenant's name."""

    def __init__(self) -> None:
        self.permits = {"acme": 2, "bolt": 2}
        self.used: Counter[str] = Counter()
        self.admitted: set[int] = set()

    def begin(self, kind: Kind) -> None:
        pass

    def admit(self, delivery: Delivery) -> str | None:
        name = tenant_of(delivery)
        if name is None:
            return None
        if self.used[name] >= self.permits[name]:
            return name
        self.used[name] += 1
        self.admitted.add(id(delivery))
        return None

    def leave(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            if (name := tenant_of(delivery)) is not None:
                self.admitted.remove(id(delivery))
                self.used[name] -= 1

    def reason(self, name: str) -> Overflow:
        return "throttled"

    def room(self, name: str) -> int:
        return 1


def tenant_of(delivery: Delivery) -> str | None:
    return delivery.envelope.tenant if delivery.envelope is not None else None


KEYS = st.sampled_from(["a", "b", "c", None])
LANES = st.sampled_from(["urgent", "bulk"])
KINDS = st.sampled_from(["sync", "async"])
TENANTS = st.sampled_from([None, "acme", "bolt", "bolt"])


class LanesMachine(RuleBasedStateMachine):
    """Anything that the poller, the executors, limits and rebalances can do to the lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.gate.permits = {"acme": 1, "bolt": 0}
        self.lanes = Lanes({"urgent": LaneRules(weight=3), "bulk": LaneRules()}, self.gate)
        self.tenures = [Tenure(), Tenure()]
        self.number = 0
        self.running: list[Run] = []
        self.open: dict[int, Delivery] = {}
        self.last: dict[Any, int] = {}
        self.now = 0.0

    @rule(key=KEYS, kind=KINDS, lane=LANES, tenant=TENANTS, tenure=st.integers(0, 1))
    def add(self, key: str | None, kind: str, lane: str, tenant: str | None, tenure: int) -> None:
        self.number += 1
        found = delivery(key, self.number, kind=kind, lane=lane, tenant=tenant, tenure=self.tenures[tenure])
        self.open[self.number] = found
        self.lanes.add(found)

    @rule(kind=KINDS, limit=st.integers(1, 6), only=st.sampled_from([None, None, "urgent", "bulk"]))
    def take(self, kind: str, limit: int, only: str | None) -> None:
        lane = self.lanes.next([kind], only)
        if lane is None:
            return
        runs, dropped = self.lanes.take_from(lane, limit)
        assert only is None or lane.name == only
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
                assert (found.kind, found.lane) == (kind, lane.name)
                assert found.assignment.active  # type: ignore[union-attr]
                assert (id(found) in self.gate.admitted) == (tenant_of(found) is not None and found.overflow is None)
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
        self.lanes.left([run])
        self.lanes.release(run, again, at=self.now + 1 if rest and again else None)

    @rule(name=st.sampled_from(["acme", "bolt"]), permits=st.integers(0, 3), told=st.booleans())
    def limit(self, name: str, permits: int, told: bool) -> None:
        self.gate.permits[name] = permits
        if told:
            self.lanes.permitted([name])

    @rule(lane=LANES, records=st.integers(0, 3))
    def overflow(self, lane: str, records: int) -> None:
        self.lanes.overflow(lane, records, 1 << 20)
        assert self.lanes.limited.get(lane, [0])[0] <= records

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
        waiting = [d for d in self.open.values() if d.lane == "bulk"]
        assert 0 <= self.lanes.limited.get("bulk", [0])[0] <= len(waiting)

    @invariant()
    def who_waits_for_a_limit_is_in_its_list(self) -> None:
        behind = {id(queue): name for name, queues in self.lanes._behind.items() for queue in queues}
        for queue in self.lanes._queues.values():
            assert behind.get(id(queue)) == queue.limit
            assert queue.limit is None or not (queue.busy or queue.listed)

    def drain(self) -> None:
        for _ in range(1000):
            for run in self.running:
                for found in run.deliveries:
                    del self.open[found.offset]
                self.lanes.left([run])
                self.lanes.release(run)
            self.running = []
            self.lanes.wake(1e9)
            self.lanes.permitted(["acme", "bolt"])
            for kind in ("sync", "async"):
                while (lane := self.lanes.next([kind])) is not None:
                    runs, dropped = self.lanes.take_from(lane, 100)
                    self.running += runs
                    for gone in dropped:
                        del self.open[gone.offset]
            if not self.running:
                return
        raise AssertionError("it never ends")

    def teardown(self) -> None:
        """Left alone, all runs that no limit forbids; without limits everything does, and nothing is remembered."""
        self.drain()
        heads: dict[Any, Delivery] = {}
        for found in self.open.values():
            heads.setdefault(found.address or found.offset, found)
        assert all(self.gate.permits[tenant_of(head) or ""] == 0 for head in heads.values())
        self.gate.permits = {"acme": 100, "bolt": 100}
        self.drain()
        assert not self.open
        assert len(self.lanes) == 0
        assert self.lanes.keys == 0
        assert not self.gate.admitted
        assert all(counted == [0, 0] for counted in self.lanes.limited.values())


TestLanes = LanesMachine.TestCase
TestLanes.settings = settings()
