"""What a handler gets beside its command: the transaction, the command's circumstances, and a way to publish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, Unpack
from uuid import UUID

from onceward_consumer import effects
from onceward_consumer.redaction import LONGEST, clean
from onceward_consumer.run_items import ItemState, RunItem, check_name
from onceward_producer.options import PublishOptions
from onceward_producer.rows import draft
from onceward_schemas.command import Command
from onceward_schemas.envelope import Envelope
from onceward_schemas.errors import AppError, OncewardError

if TYPE_CHECKING:
    import psycopg
    from structlog.stdlib import BoundLogger

    from onceward_consumer.items import Engine, Item


class BaseContext(Protocol):
    """What handlers of every mode can rely on."""

    @property
    def command_id(self) -> UUID:
        """The command's identity: the same over attempts and replays."""

    @property
    def envelope(self) -> Envelope:
        """Everything that came with the command."""

    @property
    def attempt(self) -> int:
        """Which execution this is, from 1, replays included."""

    @property
    def idempotency_key(self) -> str:
        """What to hand to a gateway, so that it applies the effect once: the same over attempts and replays."""

    @property
    def run_id(self) -> UUID | None:
        """The run that the command belongs to."""

    @property
    def item(self) -> str | None:
        """The run's item that it works on."""

    @property
    def deadline(self) -> datetime | None:
        """After this instant the command is not run any more."""

    @property
    def log(self) -> BoundLogger:
        """A structlog logger bound with command_id, type and attempt: ctx.log.info("charged", order=7).

        Arguments for %-placeholders work as well. What you pass is written as it is: leave out what is secret.
        """

    def publish(self, command: Command, **options: Unpack[PublishOptions]) -> UUID:
        """Publish a follow-up in the handler's own transaction; nothing is sent unless the handler succeeds.

        Tenant, run and trace are inherited, and this command becomes its cause. Returns the follow-up's id.
        Raises: InvalidCommandError and what the codec raises.
        """

    def items_done(self, stage: str, items: Iterable[str]) -> None:
        """Count items of the run as done in `stage`, if the handler succeeds. Each counts once.

        Raises: AppError when the command belongs to no run; InvalidCommandError for a name that cannot be stored.
        """

    def items_failed(self, stage: str, items: Mapping[str, str]) -> None:
        """Count items of the run as failed in `stage`, each with its reason, if the handler succeeds.

        Raises: as `items_done`.
        """


class Context(BaseContext, Protocol):
    """The context of a synchronous handler."""

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The transaction that the effect shares with the ledger. It commits when the handler returns.

        Raises: AppError in external handlers, which have none.
        """

    def effect_once(self, key: str) -> bool:
        """Whether no command has applied the effect of this business key yet; then it is this one's to apply.

        The key is taken in the handler's transaction: where that does not commit, it is free again. Another transaction
        that is about to take it is waited for. Keys belong to the app and are remembered for 30 days.

        Raises: InvalidCommandError for a key that cannot be stored; AppError in external handlers.
        """


class AsyncContext(BaseContext, Protocol):
    """The context of an asynchronous handler."""

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """As in `Context`."""

    async def effect_once(self, key: str) -> bool:
        """As in `Context`."""


class HandlerContext:
    """The one implementation. It ends with the call: a handler that keeps it gets errors."""

    __slots__ = ("_connection", "_engine", "_item")

    def __init__(self, item: Item, engine: Engine, connection: Any | None) -> None:
        self._item = item
        self._engine = engine
        self._connection = connection

    @property
    def connection(self) -> Any:
        if self._connection is None:
            raise AppError(
                "This handler has no ctx.connection: it is external, or its call is over.",
                remedy='Leave out mode="external" where the effect is in this database.',
            )
        return self._connection

    @property
    def envelope(self) -> Envelope:
        envelope = self._item.envelope
        assert envelope is not None
        return envelope

    @property
    def command_id(self) -> UUID:
        return self._item.id

    @property
    def attempt(self) -> int:
        return self._item.attempt

    @property
    def idempotency_key(self) -> str:
        return self.envelope.idempotency_key

    @property
    def run_id(self) -> UUID | None:
        return self.envelope.run_id

    @property
    def item(self) -> str | None:
        return self.envelope.context.item

    @property
    def deadline(self) -> datetime | None:
        return self.envelope.context.deadline

    @property
    def log(self) -> BoundLogger:
        from structlog.stdlib import get_logger  # a worker has it; who only publishes need not

        logger: BoundLogger = get_logger("onceward.handler")
        return logger.bind(command_id=str(self._item.id), type=self.envelope.type, attempt=self._item.attempt)

    def publish(self, command: Command, **options: Unpack[PublishOptions]) -> UUID:
        envelope = self.envelope
        options.setdefault("causation", self._item.id)
        if envelope.tenant is not None:
            options.setdefault("tenant", envelope.tenant)
        if envelope.run_id is not None:
            options.setdefault("run_id", envelope.run_id)
        made = draft(command, self._engine.codec, **options)
        if made.row.traceparent is None and envelope.traceparent is not None:
            made = made._replace(row=made.row._replace(traceparent=envelope.traceparent))
        self._check_open()
        self._item.drafts.append(made)
        return made.row.id

    def _check_open(self) -> None:
        if self._item.outcome is not None:
            raise OncewardError(
                "The handler's call is over.", remedy="Publish and count before the handler returns, in its own task."
            )

    def close(self) -> None:
        """The call is over."""
        self._connection = None

    def effect_once(self, key: str) -> Any:
        return effects.first(self.connection, self._engine.group, key, self._item.id)

    def items_done(self, stage: str, items: Iterable[str]) -> None:
        self._count(stage, "done", dict.fromkeys(items))

    def items_failed(self, stage: str, items: Mapping[str, str]) -> None:
        self._count(stage, "failed", items)

    def _count(self, stage: str, state: ItemState, items: Mapping[str, str | None]) -> None:
        self._check_open()
        run_id = self.envelope.run_id
        if run_id is None:
            raise AppError(
                "The command belongs to no run, so it has no items.", remedy="Publish it with run_id=run.id."
            )
        check_name("stage", stage)
        self._item.run_items += [
            RunItem(
                run_id, stage, check_name("item", item), state, _reason(reason), None, self._engine.group, self._item.id
            )
            for item, reason in items.items()
        ]


def _reason(reason: str | None) -> str | None:
    return None if reason is None else clean(str(reason), LONGEST)
