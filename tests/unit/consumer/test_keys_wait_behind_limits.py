"""A key whose head meets a limit waits for that limit and keeps nobody else waiting; what fills the buffer is handed out to be
parked, the newest keys first.
"""

from __future__ import annotations

from onceward_consumer.buffer import Buffer
from onceward_consumer.deliveries import Delivery
from onceward_consumer.lanes import Lanes, Run
from tests.unit.consumer.test_lanes import Gate, Tenure, delivery, numbers


def lanes_behind(gate: Gate, count: int = 0, tenant: str | None = "acme") -> Lanes:
    lanes = Lanes(throttle=gate)
    for number in range(count):
        lanes.add(delivery(f"k{number}", number, tenant=tenant))
    return lanes


def test_a_refused_key_keeps_no_other_waiting() -> None:
    gate = Gate()
    gate.permits["acme"] = 0
    lanes = lanes_behind(gate, 50)
    lanes.add(delivery("free", 100, tenant="bolt"))
    assert numbers(lanes.take("sync", 10)[0]) == [100]
    assert lanes.behind() == {"acme": 50}


def test_what_is_behind_a_refused_head_waits_with_it() -> None:
    gate = Gate()
    gate.permits["acme"] = 0
    lanes = lanes_behind(gate, 1)
    lanes.add(delivery("k0", 1, tenant="bolt"))
    assert lanes.take("sync", 10)[0] == []
    lanes.add(delivery("k0", 2, tenant=None))
    assert lanes.take("sync", 10)[0] == []
    gate.permits["acme"] = 1
    assert lanes.permitted(["acme"])
    assert numbers(lanes.take("sync", 10)[0]) == [0, 1, 2]


def test_a_refusal_within_a_key_ends_what_is_taken_of_it() -> None:
    gate = Gate()
    lanes = Lanes(throttle=gate)
    for number in range(5):
        lanes.add(delivery("a", number, tenant="acme"))
    [run], _ = lanes.take("sync", 10)
    assert numbers([run]) == [0, 1]
    lanes.left([run])
    lanes.release(run)
    assert numbers(lanes.take("sync", 10)[0]) == [2, 3]


def test_keys_come_back_in_the_order_in_which_they_were_refused_and_only_as_many_as_there_is_room_for() -> None:
    gate = Gate()
    gate.permits["acme"] = 0
    lanes = lanes_behind(gate, 1_000)
    assert lanes.take("sync", 1)[0] == []
    came: list[int] = []
    gate.permits["acme"] = 3
    asked = 0
    while len(came) < 200:
        lanes.permitted(["acme"])
        asked += lanes.ready("sync")
        runs, _ = lanes.take("sync", 10)
        came += numbers(runs)
        lanes.left(runs)
        for run in runs:
            lanes.release(run)
    assert sorted(came) == list(range(len(came)))
    assert asked <= 67 * 64, "not all of a thousand keys are asked again each time"


def test_all_keys_come_back_when_a_limit_is_gone() -> None:
    gate = Gate()
    gate.permits["acme"] = 0
    lanes = lanes_behind(gate, 500)
    lanes.take("sync", 1)
    gate.permits["acme"] = 1_000
    lanes.permitted(["acme"])
    taken: list[Run] = []
    while lanes.next(["sync"]) is not None:
        taken += lanes.take("sync", 100)[0]
    assert len(taken) == 500
    assert lanes.behind() == {}


def test_permits_go_back_whatever_became_of_the_commands() -> None:
    gate = Gate()
    buffer = Buffer(throttle=gate)
    buffer.add(delivery(f"k{n}", n, tenant="acme") for n in range(4))
    runs = buffer.take_now("sync", lambda _: 10)
    assert numbers(runs) == [0, 1]
    buffer.release([(run, run.deliveries) for run in runs])
    assert not gate.admitted
    assert gate.used["acme"] == 0


def test_what_is_never_called_is_never_asked_for() -> None:
    gate = Gate()
    gate.permits["acme"] = 0
    lanes = Lanes(throttle=gate)
    unknown, early, parked = (delivery(f"k{n}", n, tenant="acme") for n in range(3))
    unknown.handler, early.early, parked.overflow = None, True, "throttled"
    for each in (unknown, early, parked):
        lanes.add(each)
    assert numbers(lanes.take("sync", 10)[0]) == [0, 1, 2]


def test_what_waits_behind_limits_takes_half_of_the_buffer_and_the_newest_is_parked() -> None:
    gate = Gate()
    gate.permits["acme"] = 0
    buffer = Buffer(most_records=100, throttle=gate)
    buffer.add(delivery(f"k{n}", n, kind="async", tenant="acme") for n in range(60))
    assert buffer.take_now("async", lambda _: 100) == []
    runs = buffer.take_now("sync", lambda _: 100)
    parked = [found for run in runs for found in run.deliveries]
    assert {found.overflow for found in parked} == {"throttled"}
    assert {found.offset for found in parked} == set(range(50, 60))
    buffer.release([(run, []) for run in runs])
    assert not gate.admitted
    gate.permits["acme"] = 100
    buffer.permitted(["acme"])
    assert len(numbers(buffer.take_now("async", lambda _: 100))) == 50


def test_a_key_is_parked_as_a_whole_and_in_order() -> None:
    gate = Gate()
    gate.permits["acme"] = 0
    lanes = Lanes(throttle=gate)
    for number in range(6):
        lanes.add(delivery("ab"[number % 2], number, tenant="acme"))
    lanes.take("sync", 10)
    lanes.overflow("t", 3, 1 << 20)
    assert numbers(lanes.take("sync", 10)[0]) == [1, 3, 5]
    assert lanes.limited["t"] == [3, sum(found.size for found in waiting(lanes))]


def waiting(lanes: Lanes) -> list[Delivery]:
    return [found for queue in lanes._queues.values() for found in queue.items]


def test_a_revoked_partition_takes_its_share_of_what_waits_with_it() -> None:
    gate, gone, kept = Gate(), Tenure(), Tenure()
    gate.permits["acme"] = 0
    lanes = Lanes(throttle=gate)
    for number in range(4):
        lanes.add(delivery(f"k{number}", number, tenant="acme", tenure=gone if number % 2 else kept))
    lanes.take("sync", 10)
    gone.active = False
    assert {found.offset for found in lanes.drop_revoked()} == {1, 3}
    assert lanes.behind() == {"acme": 2}
    assert lanes.limited["t"][0] == 2
