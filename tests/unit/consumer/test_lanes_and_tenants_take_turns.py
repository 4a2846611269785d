"""Lanes get runner time by weight, tenants of a lane get commands in turn, and nobody is owed anything for having been idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward_consumer.lanes import Lanes, Run
from onceward_consumer.turns import Charge, Lane, LaneRules, kept_runners
from onceward_schemas.errors import SettingsError
from tests.unit.consumer.test_lanes import delivery

WEIGHTS = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), st.integers(1, 9), min_size=2)


class Runners:
    """Takes groups and gives them back by a clock of its own."""

    def __init__(self, weights: dict[str, int]) -> None:
        self.lanes = Lanes({name: LaneRules(weight=weight) for name, weight in weights.items()})
        self.now = 0.0
        self.seconds: Counter[str] = Counter()
        self.number = 0

    def fill(self, lane: str, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.lanes.add(delivery(None, self.number, lane=lane))

    def run(self, each: dict[str, float], limit: int) -> str:
        """One group of the lane whose turn it is; the commands of a lane take `each` of them so long."""
        lane = self.lanes.next(["sync"])
        assert lane is not None
        runs, _ = self.lanes.take_from(lane, limit)
        count = len(runs)
        charge = Charge(lane, count, self.now, free=False)
        self.now += count * each[lane.name]
        self.seconds[lane.name] += count * each[lane.name]  # type: ignore[assignment]
        charge.settle(self.now)
        for run in runs:
            self.lanes.release(run)
        self.fill(lane.name, count)
        return lane.name


@given(WEIGHTS, st.integers(1, 5), st.lists(st.sampled_from([0.01, 0.02, 0.05]), min_size=4, max_size=4))
def test_lanes_get_runner_time_in_proportion_to_their_weights(
    weights: dict[str, int], limit: int, costs: list[float]
) -> None:
    runners = Runners(weights)
    each = dict(zip("abcd", costs, strict=True))
    for name in weights:
        runners.fill(name, limit)
    longest = max(each[name] * limit for name in weights)
    while runners.now < longest * sum(weights.values()):
        runners.run(each, limit)
    total = sum(runners.seconds.values())
    for name, weight in weights.items():
        due = total * weight / sum(weights.values())
        assert abs(runners.seconds[name] - due) <= 2 * longest


@given(WEIGHTS, st.integers(1, 50))
def test_a_lane_that_was_idle_is_owed_nothing(weights: dict[str, int], idle: int) -> None:
    runners = Runners(weights)
    first, *others = sorted(weights)
    each = dict.fromkeys(weights, 0.01)
    for name in others:
        runners.fill(name, 1)
    for _ in range(idle):
        runners.run(each, 1)
    before = sum(runners.seconds.values())
    runners.fill(first, 1)
    served = [runners.run(each, 1) for _ in range(sum(weights.values()))]
    expected = weights[first] / sum(weights.values()) * len(served)
    assert served.count(first) <= expected + len(weights) + 1
    assert sum(runners.seconds.values()) > before


def test_the_only_lane_with_work_gets_all() -> None:
    runners = Runners({"a": 1, "b": 9})
    runners.fill("a", 10)
    assert {runners.run({"a": 0.01}, 2) for _ in range(20)} == {"a"}


def test_a_lane_of_long_commands_does_not_take_the_runners_of_one_of_short_commands() -> None:
    runners = Runners({"quick": 1, "slow": 1})
    for name in ("quick", "slow"):
        runners.fill(name, 1)
    served = Counter(runners.run({"quick": 0.001, "slow": 1.0}, 1) for _ in range(1_000))
    assert served["quick"] > 500 * served["slow"]


def test_a_group_is_of_one_lane() -> None:
    lanes = Lanes()
    for number in range(10):
        lanes.add(delivery(f"k{number}", number, lane="ab"[number % 2]))
    runs, _ = lanes.take("sync", 100)
    assert len({run.deliveries[0].lane for run in runs}) == 1
    assert len(runs) == 5


def test_a_runner_that_is_kept_for_a_lane_takes_nothing_else_and_is_not_counted() -> None:
    lanes = Lanes({"urgent": LaneRules(), "bulk": LaneRules()})
    lanes.add(delivery("a", 1, lane="bulk"))
    assert lanes.next(["sync"], "urgent") is None
    lanes.add(delivery("a", 2, lane="urgent"))
    lane = lanes.next(["sync"], "urgent")
    assert lane is not None
    assert lane.name == "urgent"
    Charge(lane, 1, 0.0, free=True).settle(100.0)
    assert lane.clock.at == 0.0


def test_the_first_of_several_kinds_is_served_where_a_lane_has_both() -> None:
    lanes = Lanes()
    lanes.add(delivery("a", 1, kind="sync"))
    lanes.add(delivery("b", 2, kind="batch shop.Pay"))
    assert [name(lanes.next(kinds)) for kinds in (["sync", "batch shop.Pay"], ["batch shop.Pay", "sync"])] == [
        "sync",
        "batch shop.Pay",
    ]


def name(lane: Lane | None) -> str | None:
    return None if lane is None else lane.kind


def tenants(runs: Iterable[Run]) -> list[str | None]:
    return [d.envelope.tenant for run in runs for d in run.deliveries if d.envelope is not None]


@given(st.lists(st.integers(1, 60), min_size=2, max_size=6), st.integers(1, 12))
def test_no_tenant_waits_while_another_gets_more_than_its_turn(keys: list[int], limit: int) -> None:
    """Between two commands of a tenant with ready keys each other gets a quantum at most."""
    lanes = Lanes()
    number = 0
    for round_ in range(max(keys)):
        for which, count in enumerate(keys):
            if round_ < count:
                number += 1
                lanes.add(delivery(f"{which}-{round_}", number, tenant=f"t{which}"))
    served: list[str | None] = []
    while lanes.next(["sync"]) is not None:
        served += tenants(lanes.take("sync", limit)[0])
    assert len(served) == sum(keys)
    for which, count in enumerate(keys):
        places = [place for place, each in enumerate(served) if each == f"t{which}"]
        assert len(places) == count
        for before, after in zip([-1, *places], places, strict=False):
            between = Counter(served[before + 1 : after])
            assert all(got <= max(1, limit // 2) for got in between.values())


def test_a_tenant_with_very_many_keys_leaves_half_to_the_other() -> None:
    lanes = Lanes()
    for number in range(1_000):
        lanes.add(delivery(f"big{number}", number, tenant="big"))
    for number in range(30):
        lanes.add(delivery(f"small{number}", 1_000 + number, tenant="small"))
    served = tenants(lanes.take("sync", 20)[0])
    assert Counter(served) == {"big": 10, "small": 10}
    one_by_one = [tenants(lanes.take("sync", 1)[0])[0] for _ in range(10)]
    assert Counter(one_by_one) == {"big": 5, "small": 5}


def test_tenants_with_one_busy_key_each_still_fill_a_group() -> None:
    lanes = Lanes()
    for number in range(200):
        lanes.add(delivery(f"k{number % 2}", number, tenant=f"t{number % 2}"))
    assert Counter(tenants(lanes.take("sync", 100)[0])) == {"t0": 50, "t1": 50}


def test_commands_without_a_tenant_are_one_tenants_and_wait_for_nobody() -> None:
    lanes = Lanes()
    for number in range(40):
        lanes.add(delivery(f"k{number}", number, tenant=None if number % 2 else "acme"))
    assert Counter(tenants(lanes.take("sync", 8)[0])) == {None: 4, "acme": 4}


def test_runners_are_kept_where_others_remain() -> None:
    rules = {"mail": LaneRules(reserved=2), "pay": LaneRules(reserved=1), "reports": LaneRules()}
    assert kept_runners(rules, set(rules), 5, "--threads") == ("mail", "mail", "pay", None, None)
    assert kept_runners(rules, {"mail"}, 2, "--threads") == (None, None)
    assert kept_runners(rules, {"reports", "pay"}, 2, "--tasks") == ("pay", None)
    with pytest.raises(SettingsError, match=r"reserve 3 runners, and --threads is 3") as raised:
        kept_runners(rules, set(rules), 3, "--threads")
    assert "4 or more" in (raised.value.remedy or "")
