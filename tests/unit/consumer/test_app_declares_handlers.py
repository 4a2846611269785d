"""An app takes handlers and schedules as they are declared, and refuses at once what could not work later."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.batch_context import AsyncBatchContext, BatchContext
from onceward_consumer.context import Context
from onceward_consumer.failures import Rules
from onceward_consumer.policy import exponential, fixed, never
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.errors import AppError


def command(name: str = "hr.Move", lane: str = "hr.moves") -> type[Command]:
    schema = CommandSchema(name=name, version=1, lane=lane, key="who", aggregate="employee", avro={})
    return type(name.rpartition(".")[2], (Command,), {"SCHEMA": schema})


Move = command()


def handle(command: Any, ctx: Any) -> None:
    """Does nothing."""


async def handle_async(command: Any, ctx: Any) -> None:
    """Does nothing."""


class Callee:
    async def __call__(self, command: Any, ctx: Any) -> None:
        """Does nothing."""

    def method(self, command: Any, ctx: Any) -> None:
        """Does nothing."""


def test_the_function_is_returned_unchanged() -> None:
    assert App("hr").handler(Move)(handle) is handle


def test_what_is_left_out_comes_from_the_schema_and_the_app() -> None:
    app = App("hr", retry=never, order="strict", max_runtime="5m")
    app.handler(Move)(handle)
    handler = app.handlers["hr.Move"]
    assert (handler.lane, handler.retry, handler.order) == ("hr.moves", never, "strict")
    assert (handler.mode, handler.is_async, handler.max_runtime) == ("transactional", False, timedelta(minutes=5))


def test_what_is_said_is_kept() -> None:
    app = App("hr")
    app.handler(
        Move,
        lane="hr.bulk",
        retry=fixed("5s"),
        order="none",
        mode="external",
        concurrency=3,
        destination="smtp",
        max_runtime=timedelta(seconds=30),
        item_stage="moved",
        transient=KeyError,
        permanent=(OSError, EOFError),
    )(handle_async)
    handler = app.handlers["hr.Move"]
    assert (handler.lane, handler.retry, handler.order, handler.mode) == ("hr.bulk", fixed("5s"), "none", "external")
    assert (handler.concurrency, handler.destination, handler.item_stage) == (3, "smtp", "moved")
    assert (handler.is_async, handler.max_runtime) == (True, timedelta(seconds=30))
    assert handler.rules == Rules(transient=(KeyError,), permanent=(OSError, EOFError))


def test_an_external_call_never_goes_without_a_limit() -> None:
    app = App("hr")
    app.handler(Move, mode="external")(handle)
    assert app.handlers["hr.Move"].max_runtime == timedelta(seconds=60)


@pytest.mark.parametrize(
    ("function", "is_async"),
    [
        (handle, False),
        (handle_async, True),
        (Callee(), True),
        (Callee().method, False),
        (functools.partial(handle_async), True),
        (lambda command, ctx: None, False),
    ],
)
def test_it_sees_whether_a_handler_is_async(function: Callable[..., Any], is_async: bool) -> None:
    app = App("hr")
    app.handler(Move)(function)
    assert app.handlers["hr.Move"].is_async is is_async


def test_lanes_and_tiers_are_those_of_all_handlers_together() -> None:
    app = App("hr")
    app.handler(Move, retry=fixed("5s"))(handle)
    app.handler(command("hr.Pay"), retry=exponential("1s", "5s", attempts=9, factor=5))(handle)
    app.handler(command("hr.Ask", lane="hr.asks"), retry=never)(handle)
    assert app.lanes == ("hr.asks", "hr.moves")
    assert app.tiers("hr.moves") == (timedelta(seconds=1), timedelta(seconds=5))
    assert app.tiers("hr.asks") == ()


def test_handlers_cannot_be_changed_from_outside() -> None:
    with pytest.raises(TypeError):
        App("hr").handlers["hr.Move"] = None  # type: ignore[index]


def test_two_handlers_of_one_type_are_refused_and_the_first_stays() -> None:
    app = App("hr")
    app.handler(Move)(handle)
    with pytest.raises(AppError, match=r"hr\.Move has a handler already, handle\..*second command"):
        app.handler(Move)(handle_async)
    assert app.handlers["hr.Move"].function is handle


@pytest.mark.parametrize("value", [object, "hr.Move", Command, Move(), None])
def test_only_a_command_class_is_handled(value: Any) -> None:
    with pytest.raises(AppError, match=r"is not a command class.*onceward schemas generate"):
        App("hr").handler(value)


def test_a_decorator_without_parentheses_is_told_with_them() -> None:
    with pytest.raises(AppError, match=r"Write @app\.handler\(Type\)\."):
        App("hr").handler(handle)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "extern"}, "mode is 'extern'. Did you mean 'external'?"),
        ({"mode": "Transactional"}, "Did you mean 'transactional'?"),
        ({"order": "stric"}, "order is 'stric'. Did you mean 'strict'?"),
        ({"order": "xyz"}, "Use one of 'retry', 'strict', 'none'."),
        ({"order": ["retry"]}, "order is ['retry']"),
        ({"max_runtime": "30 parsecs"}, "hr.Move: max_runtime is '30 parsecs'. Write it like 500ms"),
        ({"max_runtime": timedelta(0)}, "It must be more than zero"),
        ({"retry": "1s"}, "Pass exponential(...), fixed(...) or never."),
        ({"executor": "process", "concurrency": 4}, "Say --processes"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"destination": "smtp"}, "belongs to external handlers"),
        ({"mode": "external", "concurrency": 0}, "concurrency is 0"),
        ({"lane": "hr moves"}, "hr.Move: the lane is 'hr moves', which Kafka refuses."),
        ({"lane": "x" * 240}, "too long for Kafka"),
        ({"item_stage": ""}, "item_stage is ''. Use 1 to 200 printable characters"),
        ({"mode": "external", "destination": 5}, "destination is 5"),
        ({"transient": "KeyError"}, "Pass an exception class"),
    ],
)
def test_wrong_rules_are_refused_with_the_remedy(options: dict[str, Any], says: str) -> None:
    app = App("hr")
    with pytest.raises(AppError) as caught:
        app.handler(Move, **options)(handle)
    assert says in str(caught.value)
    assert not app.handlers


@pytest.mark.parametrize("name", ["", "h r", "hr/x", "é", ".", "x" * 250, None])
def test_an_app_name_that_kafka_refuses_is_refused(name: Any) -> None:
    with pytest.raises(AppError, match="which Kafka refuses"):
        App(name)


@pytest.mark.parametrize("lanes", [("hr.moves", "hr_moves"), ("hr_moves", "hr.moves")])
def test_lanes_that_kafka_takes_for_one_are_refused(lanes: tuple[str, str]) -> None:
    app = App("hr")
    app.handler(Move, lane=lanes[0])(handle)
    with pytest.raises(AppError, match="differ only in dots and underscores"):
        app.handler(command("hr.Pay", lane=lanes[1]))(handle)


def generator(command: Any, ctx: Any) -> Iterator[int]:
    yield 1


async def async_generator(command: Any, ctx: Any) -> AsyncIterator[int]:
    yield 1


def wants_three(command: Any, ctx: Any, more: Any) -> None:
    """Does nothing."""


def wants_keyword(command: Any, *, ctx: Any) -> None:
    """Does nothing."""


@pytest.mark.parametrize("function", [generator, async_generator, wants_three, wants_keyword, lambda: None, Callee, 5])
def test_a_function_that_could_not_be_called_is_refused(function: Any) -> None:
    with pytest.raises(AppError):
        App("hr").handler(Move)(function)


def test_an_annotation_for_another_command_is_refused() -> None:
    other = command("hr.Pay")

    def pay(command: Any, ctx: Any) -> None:
        """Does nothing."""

    pay.__annotations__["command"] = other
    with pytest.raises(AppError, match="takes a Pay but is declared for Move"):
        App("hr").handler(Move)(pay)
    pay.__annotations__["command"] = "NotImportedAtRunTime"
    App("hr").handler(Move)(pay)


def digest(tick: Any) -> None:
    """Does nothing."""


def test_schedules_are_collected_in_order() -> None:
    app = App("hr")
    app.schedule("0 7 * * MON-FRI", tz="Asia/Almaty", catch_up="2h")(digest)
    app.schedule("every 5m", id="beat")(digest)
    first, second = app.schedules
    assert (first.id, first.rule, first.tz, first.catch_up) == (
        "digest",
        "0 7 * * MON-FRI",
        "Asia/Almaty",
        timedelta(hours=2),
    )
    assert (second.id, second.tz, second.catch_up, second.function) == ("beat", "UTC", None, digest)


@pytest.mark.parametrize(
    ("options", "function", "says"),
    [
        ({"rule": " "}, digest, "Write a cron line"),
        ({"tz": "Asia/Almati"}, digest, "Did you mean 'Asia/Almaty'?"),
        ({"tz": "../etc/passwd"}, digest, "is not a time zone"),
        ({"catch_up": "soon"}, digest, "catch_up is 'soon'"),
        ({}, handle, "(tick)"),
        ({}, lambda tick: None, "no name"),
        ({"id": "x"}, handle_async, "(tick)"),
    ],
)
def test_a_schedule_that_cannot_work_is_refused(options: dict[str, Any], function: Any, says: str) -> None:
    with pytest.raises(AppError) as caught:
        App("hr").schedule(**({"rule": "0 7 * * *"} | options))(function)
    assert says in str(caught.value)


def test_two_schedules_of_one_id_are_refused() -> None:
    app = App("hr")
    app.schedule("0 7 * * *")(digest)
    with pytest.raises(AppError, match="two schedules with the id 'digest'"):
        app.schedule("0 8 * * *")(digest)


@pytest.mark.parametrize("judge", ["permanent", lambda: None, handle_async])
def test_what_cannot_classify_an_exception_is_refused(judge: Any) -> None:
    with pytest.raises(AppError, match="classify is"):
        App("hr").handler(Move, classify=judge)


def test_a_type_is_ignored_or_handled() -> None:
    app = App("hr", ignores=["shop.Refund", "hr.Move"])
    assert app.ignores == {"shop.Refund", "hr.Move"}
    with pytest.raises(AppError, match=r"hr\.Move is in the app's ignores"):
        app.handler(Move)(lambda command, ctx: None)


@pytest.mark.parametrize("ignores", ["shop.Refund", [Move], ["shop refund"], 7])
def test_ignores_are_type_names(ignores: Any) -> None:
    with pytest.raises(AppError, match="full type names"):
        App("hr", ignores=ignores)


def test_a_batch_handler_has_a_size() -> None:
    app = App("hr")
    app.handler(Move, mode="batch")(handle)
    app.handler(command("hr.Pay"), mode="batch", batch_size=7)(handle_async)
    assert [(h.batch_size, h.is_async) for h in app.handlers.values()] == [(500, False), (7, True)]


def takes(commands: Any, context: Any = Any) -> Callable[..., Any]:
    def batch(commands: Any, ctx: Any) -> None:
        """Does nothing."""

    batch.__annotations__.update(commands=commands, ctx=context)
    return batch


MANY: Any = Sequence[Move]  # type: ignore[valid-type]


@pytest.mark.parametrize("annotation", [MANY, list[Move], tuple[Move, ...], "NotImportedAtRunTime"])  # type: ignore[valid-type]
@pytest.mark.parametrize("context", [BatchContext, AsyncBatchContext, Any])
def test_a_batch_handler_takes_many(annotation: Any, context: Any) -> None:
    App("hr").handler(Move, mode="batch")(takes(annotation, context))


@pytest.mark.parametrize(
    ("options", "function", "says"),
    [
        ({"batch_size": 5}, handle, 'Add mode="batch"'),
        ({"mode": "batch", "batch_size": 0}, handle, "batch_size is 0. Give a whole number"),
        ({"mode": "batch", "batch_size": "5"}, handle, "batch_size is '5'"),
        ({"mode": "batch", "concurrency": "5"}, handle, "concurrency is '5'"),
        ({"mode": "batch", "destination": "smtp"}, handle, "belongs to external handlers"),
        ({"mode": "batch"}, lambda commands: None, "(commands, ctx)"),
        ({"mode": "batch"}, takes(Move), "Write commands: Sequence[Move]"),
        ({"mode": "batch"}, takes(Sequence[command("hr.Pay")]), "takes a Pay but is declared for Move"),  # type: ignore[misc]
        ({"mode": "batch"}, takes(MANY, Context), "Write ctx: BatchContext"),
        ({}, takes(MANY), 'Add mode="batch"'),
        ({"mode": "external"}, takes(Move, AsyncBatchContext), "Write ctx: Context"),
    ],
)
def test_a_batch_handler_that_cannot_work_is_refused(options: dict[str, Any], function: Any, says: str) -> None:
    app = App("hr")
    with pytest.raises(AppError) as caught:
        app.handler(Move, **options)(function)
    assert says in str(caught.value)
    assert caught.value.remedy
    assert not app.handlers
