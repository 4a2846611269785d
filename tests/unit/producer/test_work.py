"""What publishing asks of the database, without one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from onceward_producer.doors import run
from onceward_producer.work import BATCH, Execute, Insert, Publisher, Rows, Step, Warm
from onceward_schemas.command import Command, CommandSchema
from onceward_schemas.errors import InvalidCommandError


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Command):
    SCHEMA: ClassVar[CommandSchema] = CommandSchema(
        name="hr.Move", version=1, lane="hr.bulk", key="employee", aggregate="employee", avro={}
    )
    employee: str


class Codec:
    def encode(self, command: Command) -> bytes:
        return b"payload"


class Door:
    """Notes what it is asked to do. Answers as if nothing were a duplicate; fails where it is told to."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.steps: list[str] = []
        self._fail_at = fail_at

    def check(self) -> None: ...

    def do(self, step: Step) -> Rows:
        if isinstance(step, Warm):
            step.load()
            return []
        self.steps.append(step.sql.split()[0] if isinstance(step, Execute) else f"{len(step.rows)} rows")
        if self._fail_at == len(self.steps):
            raise ConnectionError("gone")
        fetch = isinstance(step, Execute) and step.fetch
        return [(step.parameters[0], False)] if isinstance(step, Execute) and fetch else []

    def translated(self, error: Exception) -> Exception:
        return error


@pytest.mark.parametrize("options", [{}, {"dedupe_key": "7"}])
def test_publishing_is_one_statement(options: Any) -> None:
    door, publisher = Door(), Publisher(Codec())
    run(door, publisher.publish(Move(employee="7"), options))
    assert len(door.steps) == 1


def test_a_batch_is_one_statement_and_needs_no_savepoint() -> None:
    door = Door()
    run(door, Publisher(Codec()).publish_many([Move(employee="7")] * BATCH, {}))
    assert door.steps == [f"{BATCH} rows"]


def test_a_generator_is_read_no_further_than_two_batches_ahead_of_the_database() -> None:
    read = 0

    class Watching(Door):
        def do(self, step: Step) -> Rows:
            sent = sum(int(each.split()[0]) for each in self.steps if each.endswith("rows"))
            if isinstance(step, Insert):
                assert read - sent <= 2 * BATCH
            return super().do(step)

    def commands() -> Iterator[Command]:
        nonlocal read
        for read in range(1, 5 * BATCH + 2):
            yield Move(employee=str(read))

    door = Watching()
    total = run(door, Publisher(Codec()).publish_many(commands(), {}))
    assert total == (5 * BATCH + 1, 0)
    assert door.steps == ["savepoint", *[f"{BATCH} rows"] * 5, "1 rows", "release"]


def test_an_error_in_the_callers_generator_undoes_what_was_sent() -> None:
    def commands() -> Iterator[Command]:
        yield from [Move(employee="7")] * (2 * BATCH)
        raise KeyError("employee")

    door = Door()
    with pytest.raises(KeyError):
        run(door, Publisher(Codec()).publish_many(commands(), {}))
    assert door.steps == ["savepoint", f"{BATCH} rows", f"{BATCH} rows", "rollback", "release"]


def test_a_lost_connection_is_told_as_what_it_is() -> None:
    class Lost(Door):
        def do(self, step: Step) -> Rows:
            if isinstance(step, Execute) and step.sql.startswith("rollback"):
                raise RuntimeError("not this one")
            return super().do(step)

    with pytest.raises(ConnectionError, match="gone"):
        run(Lost(fail_at=2), Publisher(Codec()).publish_many([Move(employee="7")] * (2 * BATCH), {}))


def test_the_first_meeting_with_a_type_is_a_step_of_its_own_since_it_may_wait_for_the_registry() -> None:
    publisher = Publisher(Codec())
    first = next(publisher.publish(Move(employee="7"), {}))
    assert isinstance(first, Warm)
    first.load()
    assert isinstance(next(publisher.publish(Move(employee="7"), {})), Execute)


def test_a_command_that_is_not_one_is_refused_before_any_statement() -> None:
    door = Door()
    wrong: Any = "hr.Move"
    with pytest.raises(InvalidCommandError) as caught:
        run(door, Publisher(Codec()).publish_many([Move(employee="7"), wrong], {}))
    assert "item 1" in caught.value.__notes__[0]
    assert door.steps == []
