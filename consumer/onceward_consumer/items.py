"""One command on its way through a transaction, and what the worker as a whole contributes to that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from onceward_consumer.clocks import DatabaseClock
from onceward_consumer.deaths import Deaths
from onceward_consumer.deliveries import Delivery
from onceward_consumer.guard import GUARDED, Guard
from onceward_consumer.handlers import Handler
from onceward_consumer.hands import Hands
from onceward_consumer.outcomes import Busy, Dead, Discarded, Outcome, Parked, Round
from onceward_consumer.redaction import describe
from onceward_consumer.run_items import RunItem, check_name
from onceward_producer.rows import Draft
from onceward_schemas.codec import Codec
from onceward_schemas.command import Command
from onceward_schemas.envelope import Envelope
from onceward_schemas.errors import RegistryUnavailableError, UndecodableError

if TYPE_CHECKING:
    from onceward_consumer.lanes import Run
    from onceward_consumer.limiter import Limiter

RESOLVABLE = frozenset({"unknown_type", "schema_missing"})
"""Reasons for which a record is parked, since a deployment or a registration can resolve them."""
LIMITED = frozenset({"throttled", "paused", "breaker_open", "over_quota"})
"""Reasons for which a record is parked that could run but for a limit (throttles). It heads its key like the others."""
_UNRESOLVED = RESOLVABLE | LIMITED | {GUARDED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """What is the same for every command of a worker."""

    group: str
    incarnation: UUID
    worker: str
    """Host and process id, for people."""
    code_version: str | None
    codec: Codec
    clock: DatabaseClock
    handlers: Mapping[str, Handler]
    reach: timedelta
    """How far back the ledger remembers; an unknown command that is older is never run blindly."""
    lock_timeout: timedelta
    ignores: frozenset[str] = frozenset()
    """Types on the group's lanes that it leaves to others."""
    losses: dict[UUID, int] = field(default_factory=dict)
    """Commands in whose transaction the connection was lost, and how often. It may be their handler's doing."""
    overran: set[UUID] = field(default_factory=set)
    """Those of them that were alone in a transaction that PostgreSQL ended for its length."""
    given_up: dict[UUID, tuple[int, BaseException]] = field(default_factory=dict)
    """Commands whose call in a thread was given up: the attempt, and what it is judged by."""
    deaths: Deaths = field(default_factory=Deaths)
    """Commands whose process died."""
    transaction_timeout: timedelta = timedelta(seconds=60)
    hands: Hands = field(default_factory=Hands)
    """The external commands that this worker runs."""
    guard: Guard = field(default_factory=lambda: Guard(None))
    """Says whether another dead letter may be written."""
    limiter: Limiter | None = None
    """The limits that hold for this worker."""


@dataclass(slots=True, eq=False)
class Item:
    """One command in a group."""

    delivery: Delivery
    id: UUID
    id_hex: str
    envelope: Envelope | None
    handler: Handler | None
    command: Command | None = None
    outcome: Outcome | None = None
    """None until it is decided; a record that cannot be run has its outcome from the start."""
    given: Outcome | None = None
    """The outcome that it starts with, and again when its transaction is run again."""
    asked: int = 1
    """The attempt that the record asks for."""
    known: bool = False
    """The ledger had a row for it before this transaction."""
    attempt: int = 1
    attempts_before: int = 0
    first_failed_at: datetime | None = None
    released: bool = False
    """It comes from onceward.parked."""
    seq: int = 0
    """Where it stands there."""
    heads: bool = False
    """It is the head of its held key."""
    crashed: bool = False
    """Its last worker died running it; this attempt was counted for that."""
    died: str | None = None
    """How its cell died at the attempt before, where that is known."""
    counted: tuple[str, ...] = ()
    """The run's items that it stands for."""
    drafts: list[Draft] = field(default_factory=list)
    run_items: list[RunItem] = field(default_factory=list)
    touched: bool = True
    """Its handler used the connection when it was last called."""
    started: float = 0.0
    """By time.perf_counter()."""
    seconds: float = 0.0
    run: Run | None = None

    def again(self) -> None:
        """Forget what a rolled-back transaction found out."""
        self.outcome = self.given
        self.known = self.heads = self.crashed = False
        self.died = None
        self.attempt = self.asked
        self.started = 0.0
        self.attempts_before = 0
        self.first_failed_at = None
        if self.drafts:
            self.drafts = []
        if self.run_items:
            self.run_items = []

    def refuse(self, reason: str, error: str) -> None:
        """Make it a dead letter, without what its headers say: something in them cannot be stored."""
        self.envelope = None
        self.given = Dead(reason, error)
        self.again()

    @property
    def since_ms(self) -> float:
        """When it could first run: when its version 7 id was made, or its publisher's `not_before`."""
        made_ms = self.id.int >> 80
        not_before = self.envelope.context.not_before if self.envelope is not None else None
        return made_ms if not_before is None else max(made_ms, not_before.timestamp() * 1000)

    @property
    def ordered(self) -> bool:
        """Whether it waits behind its key's head, and its key behind it. One that nobody can run yet does."""
        if self.delivery.address is None:
            return False
        return self.envelope is not None if self.handler is None else self.handler.order != "none"

    @property
    def unresolved(self) -> bool:
        """Whether it waits for a handler, a schema or a limit, and not for its key."""
        return isinstance(self.outcome, Parked) and self.outcome.reason in _UNRESOLVED


_REGISTRY_REST = timedelta(seconds=1)


def prepared(delivery: Delivery, engine: Engine) -> Item:
    """Decode a delivery's command. What cannot be read, or not now, has its outcome already."""
    envelope, handler = delivery.envelope, delivery.handler
    item = Item(delivery, delivery.id, f"{delivery.id.int:032x}", envelope, handler)
    if envelope is None:
        refusal = delivery.refusal
        item.given = Dead(refusal.reason if refusal else "bad_header", describe(refusal) if refusal else "")
    elif handler is None:
        item.attempt = item.asked = envelope.attempt
        item.given = (
            Discarded("ignored_type") if envelope.type in engine.ignores else _parked(item, "unknown_type", engine)
        )
    else:
        item.attempt = item.asked = envelope.attempt
        if delivery.early:
            item.outcome = item.given = Round()
            return item
        if delivery.overflow is not None and not _expired(item, engine):
            item.outcome = item.given = Parked(delivery.overflow)
            return item
        try:
            item.command = engine.codec.decode(delivery.payload)
        except UndecodableError as error:
            resolvable = error.reason in RESOLVABLE
            item.given = _parked(item, error.reason, engine) if resolvable else Dead(error.reason, describe(error))
        except (RegistryUnavailableError, OSError):
            item.given = Busy(_REGISTRY_REST)
        except Exception as error:  # a value that makes the decoder fail is that command's, not this worker's end
            item.given = Dead("undecodable", describe(error))
        else:
            if type(item.command) is not handler.command:
                wrong = f"The header says {envelope.type}, the payload is a {type(item.command).__name__}."
                item.given, item.command = Dead("type_mismatch", wrong), None
            elif _expired(item, engine):
                item.given = Discarded("deadline")
        _count(item, handler, envelope)
    item.outcome = item.given
    return item


def _expired(item: Item, engine: Engine) -> bool:
    deadline = item.envelope.context.deadline if item.envelope is not None else None
    return deadline is not None and deadline < engine.clock.earliest()


def _parked(item: Item, reason: str, engine: Engine) -> Parked | Discarded:
    """Nobody can run it yet; past its deadline nobody needs to."""
    return Discarded("deadline") if _expired(item, engine) else Parked(reason)


def _count(item: Item, handler: Handler, envelope: Envelope) -> None:
    if handler.item_stage is None or envelope.run_id is None:
        return
    if envelope.context.item is not None:
        item.counted = (envelope.context.item,)
    if handler.items is not None and item.command is not None:
        try:
            item.counted = tuple(check_name("item", each) for each in dict.fromkeys(handler.items(item.command)))
        except Exception as error:
            item.given, item.command = Dead("bad_items", describe(error)), None
