"""The proof: judges what a trial left by what was published and what was meant, and uses nothing of the engine's code. Pure.

Kinds of findings: lost, twice, both (an effect and a dead letter), wrongly_dead, not_dead, not_published, order, overtaken
(a follower before its head had ended), held (an effect behind an undecided dead letter of a strict key), zombie, identity.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple
from uuid import UUID

from tests.chaos.evidence import Effect, Evidence
from tests.chaos.plan import Plan

CLOCK_SECONDS: Final = 0.001
"""What two readings of the clocks of one machine may differ by."""


class Finding(NamedTuple):
    """A broken promise, and the command that it was broken to."""

    kind: str
    text: str
    id: UUID | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


def findings(plan: Plan, evidence: Evidence, *, longest_transaction: float | None = None) -> list[Finding]:
    """All broken promises. `longest_transaction` is how long an effect may have waited for its commit, in seconds."""
    found = [*_counts(plan, evidence), *_fates(plan, evidence)]
    if plan.order != "none":
        found += _order(evidence)
        found += _overtaken(plan, evidence)
    if longest_transaction is not None:
        found += _zombies(evidence, longest_transaction)
    if evidence.mixed_keys:
        found.append(Finding("identity", f"{evidence.mixed_keys} idempotency keys do not stand for one command"))
    return found


def waiting(plan: Plan, evidence: Evidence) -> set[UUID]:
    """Commands of strict keys that wait rightly: parked, behind a dead letter that nobody has decided on."""
    if plan.order != "strict":
        return set()
    heads: dict[str, int] = {}
    for identity, death in evidence.deaths.items():
        if death.state == "open" and identity in evidence.published:
            key, number = evidence.published[identity]
            heads[key] = min(number, heads.get(key, number))
    return {
        identity
        for identity in evidence.parked
        if (at := evidence.published.get(identity)) is not None and at[1] > heads.get(at[0], at[1])
    }


def _counts(plan: Plan, evidence: Evidence) -> Iterator[Finding]:
    seen: dict[UUID, int] = defaultdict(int)
    for effect in evidence.effects:
        seen[effect.id] += 1
        if evidence.published.get(effect.id) != (effect.key, effect.number):
            yield Finding("not_published", f"{effect}", effect.id)
    for identity, count in seen.items():
        if count > 1:
            yield Finding("twice", f"{count} effects of {evidence.published.get(identity)}", identity)
        if identity in evidence.deaths:
            yield Finding("both", f"{evidence.deaths[identity]} and an effect", identity)


def _fates(plan: Plan, evidence: Evidence) -> Iterator[Finding]:
    acted = {effect.id for effect in evidence.effects}
    idle = waiting(plan, evidence)
    for identity, (key, number) in evidence.published.items():
        dies = plan.fate(key, number).dies
        death = evidence.deaths.get(identity)
        if death is not None and not dies:
            yield Finding("wrongly_dead", f"{key} {number}: {death.reason}", identity)
        elif dies and death is None and identity not in idle:
            yield Finding("not_dead", f"{key} {number} was meant to die", identity)
        elif not dies and identity not in acted and identity not in idle:
            yield Finding("lost", f"{key} {number}", identity)
    for identity in evidence.deaths.keys() - evidence.published.keys():
        yield Finding("not_published", f"{evidence.deaths[identity]}", identity)


def _order(evidence: Evidence) -> Iterator[Finding]:
    """By when they were made, and by when they were committed: the two agree where one waits for the other."""
    made = sorted(evidence.effects, key=lambda effect: effect.position)
    durable = sorted(evidence.effects, key=lambda effect: (effect.committed or 0.0, effect.position))
    for how, effects in (("made", made), ("committed", durable)):
        latest: dict[str, Effect] = {}
        for effect in effects:
            before = latest.get(effect.key)
            if before is not None and effect.number < before.number:
                yield Finding("order", f"{effect.key}: {effect} {how} after {before}", effect.id)
            else:
                latest[effect.key] = effect


def _overtaken(plan: Plan, evidence: Evidence) -> Iterator[Finding]:
    """Nobody goes on before the head has ended; on a strict key, before somebody has decided about it."""
    by_key: dict[str, list[Effect]] = defaultdict(list)
    for effect in evidence.effects:
        by_key[effect.key].append(effect)
    for identity, death in evidence.deaths.items():
        if identity not in evidence.published:
            continue
        key, number = evidence.published[identity]
        strict = plan.order == "strict"
        free = death.at if not strict else death.decided if death.state == "discarded" else float("inf")
        for effect in by_key[key]:
            if effect.number > number and (effect.committed or effect.at) < free - CLOCK_SECONDS:
                yield Finding("held" if strict else "overtaken", f"{effect} before {death}", effect.id)


def _zombies(evidence: Evidence, longest: float) -> Iterator[Finding]:
    """The transaction of a frozen worker ends without it; an effect that was committed long after it was made shows one."""
    for effect in evidence.effects:
        if effect.committed is not None and effect.committed - effect.at > longest:
            yield Finding("zombie", f"{effect} waited {effect.committed - effect.at:.1f} s for its commit", effect.id)
