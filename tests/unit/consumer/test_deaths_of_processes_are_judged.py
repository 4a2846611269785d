"""A command that was alone when its process died gets one more run, if its policy has one; and what cells say is plain."""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from onceward_consumer.cell_wire import Calling, Slate, pack, plain, unpack
from onceward_consumer.clocks import DatabaseClock
from onceward_consumer.deaths import judge
from onceward_consumer.deliveries import Delivery, Headers, kind_of
from onceward_consumer.handlers import Handler, cell_kind
from onceward_consumer.items import Engine, Item
from onceward_consumer.outcomes import Dead, Duplicate, Failed
from onceward_consumer.policy import RetryPolicy, fixed, never
from onceward_producer.rows import Draft, OutboxRow
from onceward_schemas.ids import new_id
from tests.support.commands import Increment


def handler_of(retry: RetryPolicy = fixed("1s", attempts=3), **more: Any) -> Handler:  # noqa: B008
    return Handler(command=Increment, function=lambda c, x: None, lane="lane", is_async=False, retry=retry, **more)


def judged(deaths: tuple[str, ...], retry: RetryPolicy | None = None, **state: Any) -> Item:
    """A command at its first attempt, admitted after these deaths."""
    handler = handler_of() if retry is None else handler_of(retry)
    handlers: Mapping[str, Handler] = {handler.type: handler}
    identity = new_id()
    found: Headers = [("id", str(identity).encode()), ("type", handler.type.encode())]
    delivery = Delivery(
        topic="lane", partition=0, offset=0, timestamp_ms=0, key=b"k", payload=b"", headers=found, lane="lane",
        assignment=None, handlers=handlers,
    )  # fmt: skip
    item = Item(delivery, identity, f"{identity.int:032x}", delivery.envelope, handler, Increment(counter="k"))
    for name, value in state.items():
        setattr(item, name, value)
    engine = Engine(
        group="g", incarnation=uuid.uuid4(), worker="w", code_version=None, codec=None, clock=DatabaseClock(),  # type: ignore[arg-type]
        handlers=handlers, reach=timedelta(days=1), lock_timeout=timedelta(seconds=1),
    )  # fmt: skip
    for how in deaths:
        engine.deaths.note(identity, how)
    judge([item], engine)
    return item


def test_after_one_death_it_runs_again_as_the_next_attempt() -> None:
    item = judged(("SIGSEGV",))
    assert item.outcome is None
    assert (item.attempt, item.crashed, item.died) == (2, True, "SIGSEGV")


def test_the_second_death_is_final_and_says_how() -> None:
    item = judged(("SIGSEGV", "exit code 3"))
    assert item.outcome == Dead("worker_killed", "The process that ran it alone died: SIGSEGV, then exit code 3.")
    assert (item.attempt, item.died) == (2, "SIGSEGV")


def test_a_death_is_an_attempt_of_the_policy() -> None:
    item = judged(("SIGKILL",), never)
    assert item.outcome == Dead("worker_killed", "The process that ran it alone died: SIGKILL.")
    assert (item.attempt, item.crashed) == (1, False)
    last = judged(("SIGKILL",), attempt=3, first_failed_at=datetime.now(UTC))
    assert isinstance(last.outcome, Dead)
    replayed = judged(("SIGKILL",), attempt=4, attempts_before=3, first_failed_at=datetime.now(UTC))
    assert replayed.outcome is None


def test_what_has_an_outcome_keeps_it() -> None:
    item = judged(("SIGSEGV", "SIGSEGV"), outcome=Duplicate("done"))
    assert (item.outcome, item.attempt) == (Duplicate("done"), 1)


def test_only_handlers_in_processes_have_their_kind() -> None:
    assert kind_of(handler_of()) == "sync"
    assert kind_of(handler_of(executor="process")) == cell_kind(handler_of()) == "cell sync"
    assert kind_of(handler_of(executor="process", mode="external")) == "external test.Increment"


class _Tenant(StrEnum):
    ACME = "acme"


def test_what_a_handler_leaves_crosses_as_plain_values() -> None:
    at = datetime(2026, 1, 1, 7, tzinfo=ZoneInfo("Asia/Almaty"))
    row = OutboxRow(new_id(), "a", "b", "t", b"x", "topic", tenant=_Tenant.ACME)
    [found] = unpack(pack(plain([Draft(row, None, 60.0, at)])))
    assert type(found) is Draft
    assert (found.row, found.not_before) == (row, at)
    assert type(found.row.tenant) is str


def test_a_cell_may_name_only_our_values() -> None:
    assert unpack(pack(Failed("r", "e", timedelta(seconds=1)))) == Failed("r", "e", timedelta(seconds=1))
    for foreign in (os.system, _Tenant.ACME, eval):
        with pytest.raises(pickle.UnpicklingError):
            unpack(pickle.dumps(foreign))


@pytest.mark.parametrize(
    "named",
    [
        ("onceward_consumer.cells", "os.system"),
        ("onceward_consumer.cell", "os"),
        ("onceward_consumer.cell", "load"),
        ("onceward_consumer.cell_wire", "datetime"),
        ("onceward_of_somebody", "Value"),
    ],
)
def test_nor_what_our_modules_import_or_do(named: tuple[str, str]) -> None:
    text = b"".join(b"\x8c" + bytes([len(each)]) + each.encode() for each in named)
    with pytest.raises(pickle.UnpicklingError):
        unpack(b"\x80\x04" + text + b"\x93.")


def test_the_slate_shows_the_call_that_is_under_way() -> None:
    mine = Slate()
    its = Slate(os.dup(mine.descriptor))
    calling = Calling(new_id(), 2, 5, time.perf_counter())
    assert mine.read() is None
    its.write(calling)
    assert mine.read() == calling
    its.wipe()
    assert mine.read() is None
    mine.close()
    its.close()
