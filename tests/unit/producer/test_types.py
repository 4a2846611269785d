"""What a type checker sees of the main calls; run by `mypy tests`."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, assert_type
from uuid import UUID

import psycopg

from onceward_producer.outbox import Outbox
from onceward_producer.work import Published, PublishedMany
from onceward_schemas.command import Command

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session


def test_the_types_of_the_main_calls() -> None:
    """Nothing runs: mypy reads `_sync` and `_async`."""


def _sync(
    outbox: Outbox,
    transaction: Session | Connection | scoped_session[Any] | psycopg.Connection,
    command: Command,
    identity: UUID,
) -> None:
    assert_type(outbox.publish(transaction, command, dedupe_key="7"), Published)
    assert_type(outbox.publish_many(transaction, [command], tenant="north"), PublishedMany)
    assert_type(outbox.publish_many(transaction, [(command, {"item": "7"})]), PublishedMany)
    assert_type(outbox.cancel_delayed(transaction, identity), bool)
    outbox.publish(transaction, command, dedup_key="7")  # type: ignore[call-overload]
    outbox.publish(transaction, command, tenant=7)  # type: ignore[call-overload]
    outbox.publish_many(transaction, [(command, {"itm": "7"})])  # type: ignore[typeddict-unknown-key]
    outbox.publish(transaction, "hr.Move")  # type: ignore[call-overload]


async def _async(
    outbox: Outbox,
    transaction: AsyncSession | AsyncConnection | async_scoped_session[Any] | psycopg.AsyncConnection,
    command: Command,
    identity: UUID,
) -> None:
    await assert_type(outbox.publish(transaction, command), Coroutine[Any, Any, Published])
    await assert_type(outbox.publish_many(transaction, [command]), Coroutine[Any, Any, PublishedMany])
    await assert_type(outbox.cancel_delayed(transaction, identity), Coroutine[Any, Any, bool])
    outbox.publish(transaction, command)  # type: ignore[unused-coroutine]
