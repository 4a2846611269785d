"""Promise: every tick of every schedule becomes a command exactly once, whatever happens to the schedulers.

Two schedulers share schedules that fire each second. One is killed with SIGKILL and another takes its place; the other is
frozen for longer than Kafka waits for it, so that it loses its partitions without knowing, and wakes up as a leader of the
past. Not one second may be missing or doubled, in the table of ticks or in the outbox.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg

from tests.support.report_command import decoded
from tests.support.scheduler_process import ensure_topic, scheduler_process
from tests.support.services import Services

SCHEDULES = 12


def test_ticks_come_once_each(services: Services, database: str, tmp_path: Path) -> None:
    ensure_topic(services)
    app = f"ticks-{uuid4().hex[:8]}"
    with ExitStack() as stack, psycopg.connect(database, autocommit=True) as connection:

        def started(name: str) -> Any:
            return stack.enter_context(scheduler_process(services, database, app, SCHEDULES, tmp_path / name))

        second = started("second")
        wait_until(lambda: len(leaders(connection, app)) == 1, 30, tmp_path)
        [leader_of_second] = leaders(connection, app)
        first = started("first")
        wait_until(lambda: len(leaders(connection, app)) == 2, 30, tmp_path)
        wait_for_ticks(connection, app, 2 * SCHEDULES, tmp_path)

        first.kill()
        killed = leaders(connection, app) - {leader_of_second}
        third = started("third")
        wait_until(lambda: not leaders(connection, app) & killed, 30, tmp_path)
        wait_until(lambda: len(leaders(connection, app)) == 2, 30, tmp_path)

        second.send_signal(signal.SIGSTOP)
        wait_until(lambda: leader_of_second not in leaders(connection, app), 30, tmp_path)
        wait_for_ticks(connection, app, 2 * SCHEDULES, tmp_path)
        second.send_signal(signal.SIGCONT)  # for it, no time has passed: it still leads
        wait_until(lambda: len(leaders(connection, app)) == 2, 30, tmp_path)
        wait_for_ticks(connection, app, 3 * SCHEDULES, tmp_path)
        for process in (second, third):
            process.send_signal(signal.SIGTERM)
        assert [process.wait(20) for process in (second, third)] == [0, 0], logs(tmp_path)

        check_each_second_once(connection, app)
        check_outbox_agrees(connection)


def check_each_second_once(connection: psycopg.Connection[Any], app: str) -> None:
    found = connection.execute(
        "select schedule_id, outcome, array_agg(scheduled_at order by scheduled_at) from onceward.ticks"
        " where app = %s group by 1, 2",
        [app],
    ).fetchall()
    assert {outcome for _, outcome, _ in found} == {"emitted"}
    assert len(found) == SCHEDULES
    for _, _, instants in found:
        count = (instants[-1] - instants[0]) // timedelta(seconds=1) + 1
        assert count > 15
        assert instants == [instants[0] + timedelta(seconds=n) for n in range(count)]


def check_outbox_agrees(connection: psycopg.Connection[Any]) -> None:
    """One command for each tick, found by what the function was given, and not by what the tick's row says."""
    payloads = [decoded(row[0]) for row in connection.execute("select payload from onceward.outbox order by seq")]
    published = [(payload["report"], datetime.fromisoformat(payload["date"])) for payload in payloads]
    assert len(published) == len(set(published))
    assert set(published) == set(connection.execute("select schedule_id, scheduled_at from onceward.ticks"))
    for schedule in {schedule for schedule, _ in published}:
        instants = [instant for name, instant in published if name == schedule]
        assert instants == sorted(instants), "a schedule's commands are in order"


def leaders(connection: psycopg.Connection[Any], app: str) -> set[UUID]:
    return {row[0] for row in connection.execute("select leader from onceward.scheduler_epochs where app = %s", [app])}


def wait_for_ticks(connection: psycopg.Connection[Any], app: str, more: int, folder: Path) -> None:
    def count() -> int:
        row = connection.execute("select count(*) from onceward.ticks where app = %s", [app]).fetchone()
        return int(row[0]) if row else 0

    before = count()
    wait_until(lambda: count() >= before + more, 15, folder)


def wait_until(condition: Callable[[], bool], seconds: float, folder: Path) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, logs(folder)
        time.sleep(0.05)


def logs(folder: Path) -> str:
    lines = [f"{path.name}: {line}" for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]
    return "\n".join(line for line in lines if "tick.emitted" not in line)
