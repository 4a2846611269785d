"""Whatever the commands of a group do, nothing passes the one that heads its key, and the hold names that one."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onceward_consumer.failures import Discard, Reject, Retry
from onceward_consumer.groups import run_group
from onceward_consumer.handlers import Order
from onceward_consumer.items import LIMITED, Item
from onceward_consumer.moods import Mood
from onceward_consumer.outcomes import Dead, Discarded, Done, Failed, Parked
from onceward_consumer.settle import holds_changed
from tests.unit.consumer.test_groups_find_the_culprit import drive, group

NOW = datetime(2026, 11, 30, tzinfo=UTC)
commands = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["done", "retry", "dead", "discard", "limited"])),
    min_size=1,
    max_size=14,
)


def what_the_handler_does(wishes: list[str]) -> Any:
    def say(item: Item, pipelined: bool) -> BaseException | None:
        match wishes[item.delivery.offset]:
            case "retry":
                return Retry("later")
            case "dead":
                return Reject("no")
            case "discard":
                return Discard("done_before")
            case _:
                return None

    return say


@given(commands, st.sampled_from(["retry", "strict", "none"]), st.sampled_from(sorted(LIMITED)), st.integers(0, 20))
def test_nothing_passes_the_head_of_its_key(
    found: list[tuple[str, str]], order: Order, reason: str, failed_before: int
) -> None:
    wishes = [wish for _, wish in found]
    items, engine = group("".join(key for key, _ in found), order)
    for item, wish in zip(items, wishes, strict=True):
        if wish == "limited":
            item.outcome = item.given = Parked(reason)
            item.command = None
    mood = Mood()
    for _ in range(failed_before):
        mood.note(raised=True, refused=False)
    drive(run_group(items, engine, mood), items, what_the_handler_does(wishes))
    put, resolved = holds_changed(items, NOW)
    assert not resolved, "nobody of them headed a key before"
    for key in {key for key, _ in found}:
        mine = [item for item in items if item.delivery.key_text == key]
        heads = [place for place, item in enumerate(mine) if stops(item, order)]
        head = heads[0] if heads and order != "none" else len(mine)
        for place, item in enumerate(mine):
            wish = wishes[item.delivery.offset]
            if place > head:
                assert item.outcome == Parked("held")
            else:
                assert type(item.outcome) is EXPECTED[wish]
        if head == len(mine):
            assert ("t", key) not in put
        else:
            due = NOW + mine[head].outcome.delay if isinstance(mine[head].outcome, Failed) else None  # type: ignore[union-attr]
            state = "dead" if isinstance(mine[head].outcome, Dead) else "retrying"
            assert put["t", key] == (state, mine[head].id, due)


EXPECTED = {"done": Done, "retry": Failed, "dead": Dead, "discard": Discarded, "limited": Parked}


def stops(item: Item, order: Order) -> bool:
    outcome = item.outcome
    if isinstance(outcome, Parked):
        return outcome.reason in LIMITED
    return isinstance(outcome, Failed) or (isinstance(outcome, Dead) and order == "strict")
