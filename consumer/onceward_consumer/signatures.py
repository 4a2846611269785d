"""Whether a function can be called as the handler that it is declared to be. Pure."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Collection, Iterable
from typing import Any

from onceward_consumer.batch_context import AsyncBatchContext, BatchContext
from onceward_consumer.context import AsyncContext, Context
from onceward_consumer.handlers import Mode
from onceward_schemas.command import Command
from onceward_schemas.errors import AppError

_BATCH_CONTEXTS = (BatchContext, AsyncBatchContext)
_CONTEXTS = (Context, AsyncContext)


def check_signature(function: Any, command: type[Command], mode: Mode) -> None:
    """Refuse what cannot be called as function(command, ctx), or as function(commands, ctx) in batches.

    Raises: AppError.
    """
    name, called = name_of(function), "commands, ctx" if mode == "batch" else "command, ctx"
    target = _target(function)
    if isinstance(function, type) or inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        raise AppError(
            f"{name} is a {'class' if isinstance(function, type) else 'generator'}, not a handler.",
            remedy="Use `def` or `async def` with return; publish follow-ups with ctx.publish.",
        )
    if not accepts(function, 2):
        raise AppError(
            f"{name} cannot be called as {name}({called}).", remedy="Give it these two positional parameters."
        )
    first, second = _annotations(target)
    declared, many = _member(first)
    if isinstance(declared, type) and issubclass(declared, Command):
        if not issubclass(command, declared):
            raise AppError(
                f"{name} takes a {declared.__name__} but is declared for {command.__name__}.",
                remedy="Correct the decorator or the annotation.",
            )
        _check_number(name, declared, many, mode)
    if second in (_CONTEXTS if mode == "batch" else _BATCH_CONTEXTS):
        right = f"{'Async' if is_async(function) else ''}{'BatchContext' if mode == 'batch' else 'Context'}"
        raise AppError(
            f"{name} takes a {second.__name__}, which it does not get with mode={mode!r}.",
            remedy=f"Write ctx: {right}, or correct the mode.",
        )


def _check_number(name: str, declared: type[Command], many: bool, mode: Mode) -> None:
    if mode == "batch" and not many:
        raise AppError(
            f"{name} takes one {declared.__name__}, and a batch handler gets a list of them.",
            remedy=f'Write commands: Sequence[{declared.__name__}], or leave out mode="batch".',
        )
    if mode != "batch" and many:
        raise AppError(
            f"{name} takes many {declared.__name__}, and with mode={mode!r} it gets one at a time.",
            remedy=f'Add mode="batch", or write command: {declared.__name__}.',
        )


def _member(annotation: Any) -> tuple[Any, bool]:
    """The type in `Sequence[type]` and the like, and whether it is one of them."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(origin, type) and issubclass(origin, (Collection, Iterable)) and arguments:
        return arguments[0], True
    return annotation, False


def _annotations(target: Any) -> tuple[Any, Any]:
    """The first two parameters' types, each None where the annotation is absent or cannot be read at run time."""
    try:
        hints = typing.get_type_hints(target)
        names = [name for name in inspect.signature(target).parameters if name != "self"]
    except (NameError, TypeError, ValueError, AttributeError):
        return None, None
    first, second, *_ = [hints.get(name) for name in names] + [None, None]
    return first, second


def accepts(function: Any, count: int) -> bool:
    """Whether it takes so many positional arguments."""
    try:
        inspect.signature(function).bind(*range(count))
    except (TypeError, ValueError):
        return False
    return True


def is_async(function: Any) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(_target(function))


def name_of(function: Any) -> str:
    """What error messages call it."""
    return getattr(_target(function), "__qualname__", repr(function)).replace("<locals>.", "")


def _target(function: Any) -> Any:
    """The function behind partials and callable objects."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) or isinstance(function, type) else type(function).__call__
