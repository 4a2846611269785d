"""A command that comes again leaves no ledger row of a transaction in which it was not run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from onceward_consumer import settle
from onceward_consumer.outcomes import Busy, Outcome, Round
from tests.unit.consumer.test_groups_find_the_culprit import group


@pytest.mark.parametrize("outcome", [Busy(timedelta(0)), Round()])
def test_its_fresh_row_is_taken_back_and_a_known_one_is_left(outcome: Outcome) -> None:
    items, engine = group("ab")
    for item in items:
        item.outcome = outcome
    items[1].known = True
    ledger = [s for s in settle.statements(items, engine, datetime.now(UTC)) if "onceward.ledger" in s.query]
    assert [statement.params for statement in ledger] == [["g", "{" + items[0].id.hex + "}"]]
    assert "delete from onceward.ledger" in ledger[0].query
