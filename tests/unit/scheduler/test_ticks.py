"""Which ticks are due and which are let go, and what a schedule's function is asked and may answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_scheduler.definitions import Definition, definitions, partition_of
from onceward_scheduler.planning import DueSchedule, Planned, plan
from onceward_scheduler.rules import parse
from onceward_scheduler.ticks import CatchUp, Tick, catch_up_of, due_ticks, retry_delay
from onceward_schemas.errors import AppError
from tests.support.report_command import JsonEncoder, MakeReport, decoded

START = datetime(2026, 5, 5, 7, tzinfo=UTC)
MINUTELY = parse("* * * * *")


def verdicts(first: datetime, now: datetime, catch_up: CatchUp, limit: int = 500) -> list[tuple[int, str | None]]:
    due = due_ticks(MINUTELY, first, now, catch_up, limit)
    return [(tick.scheduled_at.minute, tick.skipped_because) for tick in due.ticks]


def test_a_tick_is_due_at_its_instant_and_not_before() -> None:
    just_before = START - timedelta(microseconds=1)
    assert due_ticks(MINUTELY, START, just_before, CatchUp()).ticks == []
    due = due_ticks(MINUTELY, START, START, CatchUp())
    assert ([tick.scheduled_at for tick in due.ticks], due.next_at) == ([START], START + timedelta(minutes=1))


def test_all_ticks_within_the_window_are_caught_up_in_order() -> None:
    now = START + timedelta(minutes=3, seconds=30)
    assert verdicts(START, now, CatchUp(window=timedelta(minutes=10))) == [(0, None), (1, None), (2, None), (3, None)]


def test_ticks_outside_the_window_are_skipped_with_that_reason() -> None:
    now = START + timedelta(minutes=3)
    old = "outside_catch_up_window"
    assert verdicts(START, now, CatchUp(window=timedelta(minutes=1))) == [(0, old), (1, old), (2, None), (3, None)]


def test_by_default_the_last_tick_is_emitted_however_old() -> None:
    daily, morning_after = parse("0 7 * * *"), START + timedelta(days=2, hours=9)
    due = due_ticks(daily, START, morning_after, catch_up_of(None))
    assert [tick.skipped_because for tick in due.ticks] == ["outside_catch_up_window"] * 2 + [None]
    strict = due_ticks(daily, START, morning_after, catch_up_of(timedelta(hours=2)))
    assert [tick.skipped_because for tick in strict.ticks] == ["outside_catch_up_window"] * 3


def test_last_lets_all_but_the_last_go() -> None:
    now = START + timedelta(minutes=2)
    assert verdicts(START, now, CatchUp(mode="last")) == [(0, "superseded"), (1, "superseded"), (2, None)]


def test_a_long_backlog_is_decided_in_portions() -> None:
    now = START + timedelta(minutes=10)
    due = due_ticks(MINUTELY, START, now, CatchUp(window=timedelta(hours=1), mode="last"), limit=3)
    assert [tick.skipped_because for tick in due.ticks] == ["superseded"] * 3
    assert due.next_at == START + timedelta(minutes=3)


def test_failing_schedules_are_tried_ever_more_rarely_but_at_least_each_minute() -> None:
    delays = [retry_delay(failures).total_seconds() for failures in range(1, 30)]
    assert delays == sorted(delays)
    assert (delays[0], delays[-1]) == (1, 60)


def planned(function: Callable[[Tick], Any], *, minutes: float = 0, tz: str = "UTC", codec: Any = None) -> Planned:
    app = App("hr")
    app.schedule("* * * * *", tz=tz, id="digest")(function)
    schedule = DueSchedule("digest", 0, START, None, 0, START + timedelta(minutes=minutes))
    return plan("hr", definitions(app)["digest"], schedule, codec or JsonEncoder())


def test_the_function_gets_the_instant_the_local_date_and_the_tick_before() -> None:
    seen: list[Tick] = []

    def digest(tick: Tick) -> MakeReport:
        seen.append(tick)
        return MakeReport(report="r", date=tick.local_date.isoformat())

    result = planned(digest, minutes=1, tz="Pacific/Auckland")
    assert [tick.scheduled_at for tick in seen] == [START, START + timedelta(minutes=1)]
    assert (seen[0].previous, seen[1].previous) == (None, START)
    assert (seen[0].local.hour, seen[0].local_date) == (19, date(2026, 5, 5))
    assert decoded(result.ticks[0].rows[0].payload or b"")["date"] == "2026-05-05"
    assert (result.next_at, result.last_at, result.wait_seconds) == (
        START + timedelta(minutes=2),
        START + timedelta(minutes=1),
        None,
    )


def test_each_command_carries_the_tick_as_its_idempotency_key() -> None:
    [tick] = planned(lambda tick: [MakeReport(report="a"), MakeReport(report="b")]).ticks
    contexts = [json.loads(row.context or "") for row in tick.rows]
    assert [context["idempotency_key"] for context in contexts] == [
        "hr/digest@2026-05-05T07:00:00Z",
        "hr/digest@2026-05-05T07:00:00Z#2",
    ]
    assert {context["origin"] for context in contexts} == {"schedule:digest"}


@pytest.mark.parametrize("nothing", [None, []])
def test_returning_nothing_skips_the_tick_with_that_reason(nothing: Any) -> None:
    result = planned(lambda tick: nothing, minutes=1)
    assert [(tick.outcome, tick.reason) for tick in result.ticks] == [("skipped", "function_returned_nothing")] * 2
    assert result.last_at is None


def test_a_failure_keeps_the_tick_and_what_was_planned_before_it() -> None:
    def digest(tick: Tick) -> MakeReport:
        if tick.scheduled_at > START:
            raise ValueError("no data\nwith a long explanation")
        return MakeReport(report="r")

    result = planned(digest, minutes=5)
    assert [(tick.outcome, tick.reason) for tick in result.ticks] == [
        ("emitted", None),
        ("failed", "ValueError: no data"),
    ]
    assert (result.next_at, result.last_at, result.wait_seconds) == (START + timedelta(minutes=1), START, 1.0)


@pytest.mark.parametrize("wrong", ["report", 7, [MakeReport(report="a"), "b"], {"report": "a"}])
def test_returning_something_else_fails_the_tick(wrong: Any) -> None:
    [tick] = planned(lambda tick: wrong).ticks
    assert tick.outcome == "failed"
    assert "Return a command" in (tick.reason or "")


@pytest.mark.parametrize("wrong", [{"report": "a"}, {}])
def test_a_dict_is_called_a_dict(wrong: Any) -> None:
    [tick] = planned(lambda tick: wrong).ticks
    assert "returned a dict." in (tick.reason or "")


def test_a_function_that_would_end_the_process_fails_its_tick_only() -> None:
    def leave(tick: Tick) -> None:
        raise SystemExit(3)

    [tick] = planned(leave).ticks
    assert (tick.outcome, tick.reason) == ("failed", "SystemExit: 3")


def test_what_the_codec_raises_fails_the_tick() -> None:
    class Refusing:
        def encode(self, command: object, /) -> bytes:
            raise RuntimeError("the registry is down")

    [tick] = planned(lambda tick: MakeReport(report="a"), codec=Refusing()).ticks
    assert (tick.outcome, tick.reason) == ("failed", "RuntimeError: the registry is down")


def test_a_bad_rule_names_its_schedule() -> None:
    app = App("hr")
    app.schedule("0 25 * * *", id="digest")(lambda tick: None)
    with pytest.raises(AppError, match=r"The schedule 'digest': .*bad hour"):
        definitions(app)


def test_schedules_spread_over_the_partitions_and_stay_there() -> None:
    found = [partition_of("hr", f"schedule-{n}", 4) for n in range(400)]
    assert all(70 < found.count(partition) < 130 for partition in range(4))
    assert found == [partition_of("hr", f"schedule-{n}", 4) for n in range(400)]


def test_definitions_are_read_once_with_what_the_database_keeps() -> None:
    app = App("hr")
    app.schedule("every 10s", catch_up="2h", id="digest")(lambda tick: None)
    found = definitions(app)["digest"]
    assert isinstance(found, Definition)
    assert found.stored == {"rule": "every 10s", "tz": "UTC", "catch_up_seconds": 7200.0}
