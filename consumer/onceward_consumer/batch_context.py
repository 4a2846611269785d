"""What a batch handler gets beside its commands, and what it may say of each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, Unpack
from uuid import UUID

from onceward_consumer.context import AsyncContext, Context, HandlerContext
from onceward_consumer.handlers import Handler
from onceward_producer.options import PublishOptions
from onceward_schemas.command import Command
from onceward_schemas.errors import AppError

if TYPE_CHECKING:
    import psycopg
    from structlog.stdlib import BoundLogger

    from onceward_consumer.items import Engine, Item
    from onceward_consumer.script import Call

_REMEDY = "Return None when all are done, or a list with, for each command in order, None or the Retry, Reject or Discard that ends it."


class BatchContext(Protocol):
    """The context of a synchronous batch handler."""

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The transaction that the effect of the whole batch shares with the ledger."""

    @property
    def items(self) -> Sequence[Context]:
        """For each command, in order, the context that it would have if it came alone."""

    @property
    def log(self) -> BoundLogger:
        """A structlog logger bound with the type and the number of commands; those of `items` have their ids."""


class AsyncBatchContext(Protocol):
    """The context of an asynchronous batch handler."""

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """As in `BatchContext`."""

    @property
    def items(self) -> Sequence[AsyncContext]:
        """As in `BatchContext`."""

    @property
    def log(self) -> BoundLogger:
        """As in `BatchContext`."""


class NamedError(Exception):
    """A batch handler named commands that are not done."""

    def __init__(self, outcomes: dict[int, Exception]) -> None:
        self.outcomes = outcomes
        """By position in the batch."""
        super().__init__(f"The handler named {len(outcomes)} of its commands.")


class HandlerBatchContext:
    """The one implementation. It ends with the call, as do the contexts of its items."""

    __slots__ = ("_batch", "_connection", "_engine", "_items")

    def __init__(self, batch: Sequence[Item], engine: Engine, connection: Any) -> None:
        self._batch = batch
        self._engine = engine
        self._connection = connection
        self._items: list[_ItemContext] | None = None

    @property
    def connection(self) -> Any:
        if self._connection is None:
            raise AppError("The batch's call is over.", remedy="Use ctx.connection before the handler returns.")
        return self._connection

    @property
    def items(self) -> Sequence[Any]:
        if self._items is None:
            self._items = [_ItemContext(item, self._engine, self._connection) for item in self._batch]
        return self._items

    @property
    def log(self) -> BoundLogger:
        from structlog.stdlib import get_logger  # a worker has it; who only publishes need not

        handler = self._batch[0].handler
        logger: BoundLogger = get_logger("onceward.handler")
        return logger.bind(type=handler and handler.type, commands=len(self._batch))

    def close(self) -> None:
        """The call is over."""
        self._connection = None
        for item in self._items or ():
            item.close()


class _ItemContext(HandlerContext):
    """A follow-up belongs to its command's trace, and not to that of the batch."""

    __slots__ = ()

    def publish(self, command: Command, **options: Unpack[PublishOptions]) -> UUID:
        found = super().publish(command, **options)
        if (traceparent := self.envelope.traceparent) is not None:
            made = self._item.drafts[-1]
            self._item.drafts[-1] = made._replace(row=made.row._replace(traceparent=traceparent))
        return found


def opened(
    step: Call, engine: Engine, connection: Any
) -> tuple[Handler, Sequence[Item], HandlerContext | HandlerBatchContext, Any]:
    """For a call: the handler, the batch (empty where it takes single commands), and what it is called with."""
    item = step.item
    handler = item.handler
    assert handler is not None
    if handler.mode != "batch":
        return handler, (), HandlerContext(item, engine, connection), item.command
    batch = step.batch or (item,)
    return handler, batch, HandlerBatchContext(batch, engine, connection), [each.command for each in batch]


def conclude(answer: Any, batch: Sequence[Item], handler: Handler) -> None:
    """Return if all commands of the batch are done, by what the handler returned.

    Raises: NamedError; for a batch of one what the handler says of it; AppError for what means nothing.
    """
    if answer is None:
        return
    name = getattr(handler.function, "__qualname__", repr(handler.function)).replace("<locals>.", "")
    if not isinstance(answer, (list, tuple)):
        raise AppError(f"The batch handler {name} returned a value of type {type(answer).__name__}.", remedy=_REMEDY)
    if len(answer) != len(batch):
        raise AppError(
            f"The batch handler {name} returned {len(answer)} outcomes for {len(batch)} commands.", remedy=_REMEDY
        )
    outcomes: dict[int, Exception] = {}
    for position, said in enumerate(answer):
        if said is None:
            continue
        if not isinstance(said, Exception):
            what = f"the class {said.__name__}" if isinstance(said, type) else f"a value of type {type(said).__name__}"
            raise AppError(
                f"The batch handler {name} returned {what} for command {position + 1} of {len(batch)}.", remedy=_REMEDY
            )
        outcomes[position] = said
    if len(batch) == 1 and outcomes:
        raise outcomes[0]
    if outcomes:
        raise NamedError(outcomes)
