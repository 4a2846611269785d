"""Handlers with executor="process": called in child processes, with the outcomes, limits and end that belong to that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.worker import Worker, WorkerOptions
from onceward_schemas.errors import AppError
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, eventually
from tests.support.deadly import OPTIONS, TARGET, Workers, children_of, deadly_group
from tests.support.services import Services


@contextmanager
def running(group: Group, **more: Any) -> Iterator[Worker]:
    worker = Worker(group.app, group.settings, WorkerOptions(**OPTIONS | more), cells=TARGET)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


SECONDS = 120.0
MODES = ["process-sync", "process-async", "process-external"]


@pytest.mark.parametrize("mode", MODES)
def test_commands_take_effect_once_in_order_and_elsewhere(
    services: Services, database: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    group = deadly_group(services, database, topic_prefix, mode, monkeypatch)
    group.publish(Increment(counter=f"c{n % 7}", amount=n) for n in range(200))
    with Forwarder(database, services.bootstrap), running(group):
        eventually(lambda: group.states() == {"done": 200} and group.settled(), "200 commands", SECONDS)
        cells = {pid for (pid,) in group.query("select distinct pid from effect")}
        assert cells <= set(children_of(os.getpid()))
    for key in range(7):
        rows = group.query("select amount from effect where counter = %s order by seq", f"c{key}")
        assert [amount for (amount,) in rows] == list(range(key, 200, 7))
    assert os.getpid() not in cells
    eventually(lambda: not cells & set(children_of(os.getpid())), "end of the cells")


@pytest.mark.parametrize("mode", MODES)
def test_exceptions_mean_the_same_as_elsewhere(
    services: Services, database: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    group = deadly_group(services, database, topic_prefix, mode, monkeypatch)
    ids = group.publish(Increment(counter=note, note=note) for note in ("error", "reject", "retry"))
    with Forwarder(database, services.bootstrap), running(group):
        eventually(lambda: group.states() == {"dead": 3} and group.settled(), "three dead letters", SECONDS)
    found = {i: (r, e) for i, r, e in group.query("select command_id, reason, error from onceward.dead_letters")}
    reason, error = found[ids[0]]
    assert reason == "key_error"
    assert error.startswith("KeyError: 'no such counter' (deadly.py:")
    assert error.endswith(" in obey)")
    assert [found[i][0] for i in ids[1:]] == ["never", "attempts_exhausted"]
    attempts = "select attempt, outcome from onceward.attempts where command_id = %s order by attempt"
    assert group.query(attempts, ids[2]) == [(1, "failed"), (2, "failed"), (3, "dead")]


@pytest.mark.parametrize("mode", MODES)
def test_a_busy_loop_is_ended_at_its_limit_and_its_slot_is_free(
    services: Services, database: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    group = deadly_group(services, database, topic_prefix, mode, monkeypatch)
    [spinner] = group.publish([Increment(counter="a", amount=1, note="spin")])
    group.publish(Increment(counter=key, amount=n) for n in range(2, 20) for key in "ab")
    with Forwarder(database, services.bootstrap), running(group, processes=1):
        started = time.monotonic()
        eventually(lambda: group.states() == {"dead": 1, "done": 36} and group.settled(), "end of all", SECONDS)
        assert time.monotonic() - started < 60
    assert group.query(
        "select attempt, outcome, reason from onceward.attempts where command_id = %s order by attempt", spinner
    ) == [(1, "failed", "max_runtime"), (2, "failed", "max_runtime"), (3, "dead", "attempts_exhausted")]
    assert group.query("select amount from effect where counter = 'a' order by seq") == [(n,) for n in range(2, 20)]


@pytest.mark.parametrize(
    ("mode", "note", "how"),
    [
        ("process-sync", "exit", "exit code 3"),
        ("process-async", "kill", "SIGKILL"),
        ("process-external", "segfault", "SIGSEGV"),
    ],
)
def test_a_command_that_kills_its_process_twice_is_a_dead_letter(
    services: Services,
    database: str,
    topic_prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    note: str,
    how: str,
) -> None:
    group = deadly_group(services, database, topic_prefix, mode, monkeypatch)
    ids = group.publish(Increment(counter=f"c{n % 3}", amount=n, note=note if n == 4 else None) for n in range(30))
    with Forwarder(database, services.bootstrap), running(group):
        eventually(lambda: group.states() == {"dead": 1, "done": 29} and group.settled(), "end of all", SECONDS)
    [(identity, reason, error)] = group.query("select command_id, reason, error from onceward.dead_letters")
    assert (identity, reason) == (ids[4], "worker_killed")
    assert error == f"The process that ran it alone died: {how}, then {how}."
    for key in range(3):
        rows = group.query("select amount from effect where counter = %s order by seq", f"c{key}")
        assert [amount for (amount,) in rows] == [n for n in range(key, 30, 3) if n != 4]
    if mode != "process-external":
        assert group.query("select attempt, outcome, reason from onceward.attempts order by attempt") == [
            (1, "crashed", "worker_killed"),
            (2, "dead", "worker_killed"),
        ]


def test_a_cell_that_dies_while_it_has_nothing_to_do_is_replaced(
    services: Services, database: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = deadly_group(services, database, topic_prefix, "process-sync", monkeypatch)
    with Forwarder(database, services.bootstrap), running(group, processes=1):
        group.publish([Increment(counter="a", amount=1)])
        eventually(lambda: group.states() == {"done": 1}, "first effect", SECONDS)
        [(first,)] = group.query("select pid from effect")
        killed_before_its_worker = Path(f"/proc/{first}/oom_score_adj").read_text().strip()
        assert killed_before_its_worker == "500"
        os.kill(first, signal.SIGKILL)
        group.publish([Increment(counter="a", amount=2)])
        eventually(lambda: group.states() == {"done": 2}, "second effect", SECONDS)
    assert group.query("select amount, attempt, pid = %s from effect order by seq", first) == [
        (1, 1, True),
        (2, 1, False),
    ]
    assert not group.count("select count(*) from onceward.attempts")


def test_cells_end_with_their_worker(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = deadly_group(services, database, topic_prefix, "process-sync", monkeypatch)
    group.publish(Increment(counter=f"c{n}", amount=n, note="spin" if n == 8 else None) for n in range(9))
    workers = Workers(tmp_path)
    with Forwarder(database, services.bootstrap):
        worker = workers.start()
        try:
            eventually(lambda: group.count("select count(*) from effect") > 0, "effect", SECONDS)
            cells = children_of(worker.pid)
            assert cells
            os.killpg(worker.pid, signal.SIGINT)  # as a terminal does
            worker.kill()
            worker.wait()
            eventually(lambda: not any(Path(f"/proc/{cell}/cmdline").exists() for cell in cells), "end of the cells", 5)
        finally:
            workers.stop()


def test_a_worker_of_an_app_that_cannot_be_imported_says_so(
    services: Services, database: str, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = deadly_group(services, database, topic_prefix, "process-sync", monkeypatch)
    for cells in (None, "tests.support.nowhere:app", "tests.support.deadly:nothing"):
        with pytest.raises(AppError) as caught:
            Worker(group.app, group.settings, cells=cells).start()
        assert "cannot import the app" in str(caught.value)
        assert 'cells="module:app"' in str(caught.value.remedy)


def test_a_process_is_the_only_other_place() -> None:
    with pytest.raises(AppError, match="executor is 'proces'"):
        App("a").handler(Increment, executor="proces")  # type: ignore[arg-type]


def test_the_module_of_a_cell_starts_nothing_by_itself() -> None:
    assert subprocess.run([sys.executable, "-c", "import onceward_consumer.cell"], check=False).returncode == 0
