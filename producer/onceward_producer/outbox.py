"""The outbox as services use it: a command is recorded in the caller's own transaction, or not at all."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Unpack, overload, runtime_checkable
from uuid import UUID

import psycopg

from onceward_producer.doors import run, run_async
from onceward_producer.options import PublishOptions
from onceward_producer.psycopg_door import AsyncPsycopgDoor, PsycopgDoor
from onceward_producer.rows import Encoder
from onceward_producer.work import Item, Published, PublishedMany, Publisher, T, Work, cancel_delayed
from onceward_schemas.command import Command

if TYPE_CHECKING:  # a service on psycopg alone does not load SQLAlchemy
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

SyncTransaction: TypeAlias = "Session | Connection | scoped_session[Any] | psycopg.Connection[Any]"
AsyncTransaction: TypeAlias = (
    "AsyncSession | AsyncConnection | async_scoped_session[Any] | psycopg.AsyncConnection[Any]"
)


@runtime_checkable
class Preloader(Protocol):
    """A codec that can ask the registry ahead."""

    def add(self, command: type[Command], /) -> None: ...

    def preload(self) -> None: ...


class Outbox:
    """Records commands in the caller's transaction; safe to share between threads. Never begins, commits or rolls back.

    Every method takes a SQLAlchemy session or connection or a psycopg connection, and returns a coroutine for their
    async forms.
    """

    def __init__(self, codec: Encoder) -> None:
        self._codec = codec
        self._publisher = Publisher(codec)

    def preload(self, *commands: type[Command]) -> None:
        """Ask the registry for these types now, so that no publish waits for it.

        Raises: SchemaMissingError, RegistryUnavailableError.
        """
        if isinstance(self._codec, Preloader):
            for command in commands:
                self._codec.add(command)
            self._codec.preload()

    @overload
    def publish(
        self, transaction: SyncTransaction, command: Command, **options: Unpack[PublishOptions]
    ) -> Published: ...
    @overload
    def publish(
        self, transaction: AsyncTransaction, command: Command, **options: Unpack[PublishOptions]
    ) -> Coroutine[Any, Any, Published]: ...
    def publish(
        self, transaction: SyncTransaction | AsyncTransaction, command: Command, **options: Unpack[PublishOptions]
    ) -> Published | Coroutine[Any, Any, Published]:
        """Record one command, with one statement. The id is known at once; durable is what the caller commits.

        What is raised before the statement (a bad value, a registry that is down) leaves the transaction usable.
        With `dedupe_key`, a publisher whose key another open transaction has just used waits for that one's end.

        Raises: TransactionError where none is open or it has failed; InvalidCommandError naming the field;
        SchemaMissingError; RegistryUnavailableError; DatabaseError where tables or rights are missing.
        """
        return _carried_out(transaction, self._publisher.publish(command, options))

    @overload
    def publish_many(
        self, transaction: SyncTransaction, commands: Iterable[Item], **options: Unpack[PublishOptions]
    ) -> PublishedMany: ...
    @overload
    def publish_many(
        self, transaction: AsyncTransaction, commands: Iterable[Item], **options: Unpack[PublishOptions]
    ) -> Coroutine[Any, Any, PublishedMany]: ...
    def publish_many(
        self,
        transaction: SyncTransaction | AsyncTransaction,
        commands: Iterable[Item],
        **options: Unpack[PublishOptions],
    ) -> PublishedMany | Coroutine[Any, Any, PublishedMany]:
        """Record any number of commands, a batch at a time, in their order; all of them or, on an error, none.

        `commands` may be a generator; each is a command or a pair of a command and its own options, which go before
        `options`. Raises as `publish` does, with a note on which item it was.
        """
        return _carried_out(transaction, self._publisher.publish_many(commands, options))

    @overload
    def cancel_delayed(self, transaction: SyncTransaction, command_id: UUID) -> bool: ...
    @overload
    def cancel_delayed(self, transaction: AsyncTransaction, command_id: UUID) -> Coroutine[Any, Any, bool]: ...
    def cancel_delayed(
        self, transaction: SyncTransaction | AsyncTransaction, command_id: UUID
    ) -> bool | Coroutine[Any, Any, bool]:
        """Take back a command that was published with `not_before` and is not due yet; frees its dedupe key.

        False says that it was not there: never published so, taken back already, or on its way.
        """
        return _carried_out(transaction, cancel_delayed(command_id))


def _carried_out(transaction: Any, work: Work[T]) -> T | Coroutine[Any, Any, T]:
    if isinstance(transaction, psycopg.Connection):
        return run(PsycopgDoor(transaction), work)
    if isinstance(transaction, psycopg.AsyncConnection):
        return run_async(AsyncPsycopgDoor(transaction), work)
    from onceward_producer.sqlalchemy_door import carried_out

    return carried_out(transaction, work)
