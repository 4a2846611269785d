"""The checker of the trials under attack: it passes a clean trial, and names each way to break a promise."""

from __future__ import annotations

import dataclasses
from uuid import UUID

import pytest

from tests.chaos.checker import findings, waiting
from tests.chaos.evidence import Death, Effect, Evidence
from tests.chaos.plan import Plan, fate

KEY = next(f"k{n}" for n in range(10_000) if not any(fate(1, f"k{n}", m).dies for m in range(5)))
DYING = next(f"k{n}" for n in range(10_000) if [fate(1, f"k{n}", m).dies for m in range(1, 4)] == [True, False, False])
PLAN = Plan(seed=1)


def effect(number: int, at: float, *, key: str = KEY, committed: float | None = None, **changed: object) -> Effect:
    position = int(at * 1000)
    made = Effect(UUID(int=number), key, number, 1, 7, at, committed or at + 0.01, position)
    return made._replace(**changed)  # type: ignore[arg-type]


def evidence(*effects: Effect, published: int = 3, key: str = KEY, deaths: tuple[Death, ...] = ()) -> Evidence:
    return Evidence(
        published={UUID(int=n): (key, n) for n in range(1, published + 1)},
        effects=list(effects),
        deaths={death.id: death for death in deaths},
    )


CLEAN = evidence(effect(1, 1.0), effect(2, 2.0), effect(3, 3.0))
DEAD = Death(UUID(int=1), "never", "open", 1.0, 1.0)
FOLLOWERS = effect(2, 2.0, key=DYING), effect(3, 3.0, key=DYING)


def kinds(found: Evidence, plan: Plan = PLAN, longest: float | None = None) -> set[str]:
    return {finding.kind for finding in findings(plan, found, longest_transaction=longest)}


def test_a_clean_trial_passes() -> None:
    assert not kinds(CLEAN, longest=1.0)
    assert not kinds(evidence(*FOLLOWERS, key=DYING, deaths=(DEAD,)))


BROKEN = {
    "lost": evidence(effect(1, 1.0), effect(3, 3.0)),
    "twice": evidence(*CLEAN.effects, effect(3, 4.0)),
    "not_published": evidence(*CLEAN.effects, effect(4, 4.0)),
    "order": evidence(effect(1, 1.0), effect(3, 2.0), effect(2, 3.0)),
    "both": evidence(*CLEAN.effects, deaths=(DEAD,)),
    "wrongly_dead": evidence(*CLEAN.effects[1:], deaths=(DEAD,)),
    "not_dead": evidence(*FOLLOWERS, key=DYING),
    "overtaken": evidence(*FOLLOWERS, key=DYING, deaths=(DEAD._replace(at=2.5),)),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_promise_is_named(kind: str) -> None:
    assert kind in kinds(BROKEN[kind])


def test_an_order_of_commits_that_differs_from_that_of_the_effects_is_named() -> None:
    assert kinds(evidence(effect(1, 1.0, committed=9.0), effect(2, 2.0), effect(3, 3.0))) == {"order"}


def test_an_effect_that_waits_long_for_its_commit_is_a_zombies() -> None:
    late = evidence(effect(1, 1.0), effect(2, 2.0), effect(3, 3.0, committed=18.0))
    assert kinds(late, longest=7.0) == {"zombie"}


def test_without_order_nothing_is_said_of_it() -> None:
    plan = dataclasses.replace(PLAN, order="none")
    assert not kinds(BROKEN["order"], plan)
    assert not kinds(BROKEN["overtaken"], plan)


def test_behind_an_undecided_dead_letter_of_a_strict_key_nothing_runs() -> None:
    plan = dataclasses.replace(PLAN, order="strict")
    assert kinds(evidence(*FOLLOWERS, key=DYING, deaths=(DEAD,)), plan) == {"held"}
    discarded = DEAD._replace(state="discarded", decided=1.5)
    assert not kinds(evidence(*FOLLOWERS, key=DYING, deaths=(discarded,)), plan)
    assert kinds(evidence(*FOLLOWERS, key=DYING, deaths=(discarded._replace(decided=2.5),)), plan) == {"held"}


def test_behind_a_dead_letter_of_a_strict_key_parked_commands_wait_rightly() -> None:
    plan = dataclasses.replace(PLAN, order="strict")
    parked = {UUID(int=2), UUID(int=3)}
    found = dataclasses.replace(evidence(key=DYING, deaths=(DEAD,)), parked=parked)
    assert waiting(plan, found) == parked
    assert not kinds(found, plan)
    assert kinds(dataclasses.replace(found, deaths={}), plan) == {"lost", "not_dead"}
