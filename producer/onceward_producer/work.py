"""Publishing without I/O: generators that yield what to do next and are sent its result. Doors carry the steps out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar, cast
from uuid import UUID

from onceward_producer.options import PublishOptions
from onceward_producer.rows import (
    INSERT_MANY,
    INSERT_ONE,
    PUBLISH_DRAFT,
    PUBLISH_DRAFTS,
    Draft,
    Encoder,
    OutboxRow,
    arrays,
    draft,
    draft_arrays,
    draft_values,
)
from onceward_runtime.sql import query
from onceward_schemas.command import Command
from onceward_schemas.errors import OncewardError

BATCH = 1000
"""Rows that publish_many holds in memory and sends at a time."""

Item = Command | tuple[Command, PublishOptions]
"""What publish_many takes: a command, or a command with options of its own."""


class Published(NamedTuple):
    """What became of one command. Nothing is durable before the caller commits."""

    id: UUID
    duplicate: bool
    """The dedupe key was taken: nothing was inserted, and `id` is the command that was there before."""


class PublishedMany(NamedTuple):
    """What became of many commands. Nothing is durable before the caller commits."""

    published: int
    duplicates: int


class Execute(NamedTuple):
    """Run one statement, and return its rows if it has some."""

    sql: str
    parameters: Sequence[Any] = ()
    fetch: bool = False


class Insert(NamedTuple):
    """Insert rows into the outbox by the driver's fastest way."""

    rows: Sequence[OutboxRow]

    def as_execute(self) -> Execute:
        """The same as one statement."""
        return Execute(INSERT_MANY, arrays(self.rows))


class Warm(NamedTuple):
    """Call this where it may block: it asks the registry."""

    load: Callable[[], object]


Step = Execute | Insert | Warm
Rows = list[tuple[Any, ...]]
T = TypeVar("T")
Work = Generator[Step, Rows, T]

_SAVEPOINT: Final = Execute("savepoint onceward_publish_many")
_RELEASE: Final = Execute("release savepoint onceward_publish_many")
_UNDO: Final = Execute("rollback to savepoint onceward_publish_many")
_CANCEL: Final = query("onceward_producer", "cancel_delayed")


class Publisher:
    """Makes the work. Remembers which command classes the codec has met, since the first meeting asks the registry."""

    def __init__(self, codec: Encoder) -> None:
        self._codec = codec
        self._met: set[type[Command]] = set()

    def publish(self, command: Command, options: PublishOptions) -> Work[Published]:
        """One statement."""
        if type(command) not in self._met:
            yield self._meet(command)
        made = draft(command, self._codec, **options)
        if made.plain:
            yield Execute(INSERT_ONE, made.row)
            return Published(made.row.id, False)
        [(kept, duplicate)] = yield Execute(PUBLISH_DRAFT, draft_values(made), fetch=True)
        return Published(_as_uuid(kept), duplicate)

    def publish_many(self, items: Iterable[Item], options: PublishOptions) -> Work[PublishedMany]:
        """One statement a batch; in a savepoint when there is more than one batch, so that it is all or nothing."""
        source = enumerate(items)
        batch = yield from self._take(source, options)
        more = (yield from self._take(source, options)) if len(batch) == BATCH else []
        if not more:
            return (yield from _send(batch))
        yield _SAVEPOINT
        try:
            total = yield from _send(batch)
            while more:
                sent = yield from _send(more)
                total = PublishedMany(total.published + sent.published, total.duplicates + sent.duplicates)
                more = yield from self._take(source, options)
        except Exception:
            with suppress(Exception):  # the connection may be gone; what went wrong first is what to tell
                yield _UNDO
                yield _RELEASE
            raise
        yield _RELEASE
        return total

    def _take(self, source: Iterable[tuple[int, Item]], options: PublishOptions) -> Work[list[Draft]]:
        """The next batch of drafts; an error says which item of the whole it is about."""
        drafts: list[Draft] = []
        for position, item in islice(source, BATCH):
            command, own = item if isinstance(item, tuple) else (item, None)
            try:
                if type(command) not in self._met:
                    yield self._meet(command)
                merged = options if own is None else cast(PublishOptions, {**options, **own})
                drafts.append(draft(command, self._codec, **merged))
            except OncewardError as error:
                error.add_note(f"This is about item {position} of publish_many, counted from 0.")
                raise
        return drafts

    def _meet(self, command: Command) -> Warm:
        def load() -> None:
            draft(command, self._codec)
            self._met.add(type(command))

        return Warm(load)


def cancel_delayed(command_id: UUID) -> Work[bool]:
    """Remove a command that is not due yet."""
    [(count,)] = yield Execute(_CANCEL, (command_id,), fetch=True)
    return bool(count)


def _send(drafts: list[Draft]) -> Work[PublishedMany]:
    if not drafts:
        return PublishedMany(0, 0)
    if all(made.plain for made in drafts):
        yield Insert([made.row for made in drafts])
        return PublishedMany(len(drafts), 0)
    answers = yield Execute(PUBLISH_DRAFTS, draft_arrays(drafts), fetch=True)
    duplicates = sum(duplicate for _, duplicate in answers)
    return PublishedMany(len(drafts) - duplicates, duplicates)


def _as_uuid(value: Any) -> UUID:
    return value if type(value) is UUID else UUID(str(value))
