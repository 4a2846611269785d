"""A command ends the process that runs it: by os._exit, by SIGKILL as the kernel does when memory is short, by a segfault.

Promised: it takes down one worker at most, becomes a dead letter that says so, and everything around it takes effect once and
in order of its key. Workers that an operator kills, however often, make no dead letter of what they ran.
"""

from __future__ import annotations

import functools
import signal
import time
from pathlib import Path

import pytest

from tests.support.commands import Increment
from tests.support.consumers import Forwarder, Group, eventually
from tests.support.deadly import Workers, children_of, deadly_group
from tests.support.services import Services

SECONDS = 120.0
KEYS = 7


def assigned(workers: Workers, number: int) -> bool:
    return "partitions.assigned" in workers.log(number)


def in_order(group: Group, amounts: int, killers: set[int], *, once: bool = True) -> None:
    rows = group.query("select counter, amount from effect order by seq")
    for key in range(KEYS):
        found = [amount for counter, amount in rows if counter == f"c{key}"]
        firsts = found if once else list(dict.fromkeys(found))
        assert firsts == [n for n in range(key, amounts, KEYS) if n not in killers], f"c{key}"


@pytest.mark.parametrize(
    ("mode", "note", "how"),
    [
        ("sync", "exit", "exit code 3"),
        ("sync", "kill", "SIGKILL"),
        ("async", "segfault", "SIGSEGV"),
        ("external", "segfault", "SIGSEGV"),
        ("external", "kill", "SIGKILL"),
    ],
)
def test_it_takes_down_one_worker_and_is_a_dead_letter(
    services: Services,
    database: str,
    topic_prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    note: str,
    how: str,
) -> None:
    group = deadly_group(services, database, topic_prefix, mode, monkeypatch)
    workers = Workers(tmp_path)
    try:
        with Forwarder(database, services.bootstrap):
            for _ in range(3):
                workers.start()
            eventually(lambda: all("partitions.assigned" in workers.log(n) for n in range(3)), "workers", SECONDS)
            ids = group.publish(
                Increment(counter=f"c{n % KEYS}", amount=n, note=note if n == 40 else None) for n in range(100)
            )
            eventually(lambda: group.states() == {"done": 99, "dead": 1} and group.settled(), "end of all", SECONDS)
        assert len(workers.killed()) == 1
    finally:
        workers.stop()
    [(identity, reason, error)] = group.query("select command_id, reason, error from onceward.dead_letters")
    assert (identity, reason) == (ids[40], "worker_killed")
    assert error == f"The process that ran it alone died: {how}, then {how}."
    in_order(group, 100, {40}, once=mode != "external")
    outcomes = group.query(
        "select attempt, outcome, reason from onceward.attempts where command_id = %s order by attempt", ids[40]
    )
    first = "worker_lost" if mode == "external" else "worker_killed"
    assert outcomes == [(1, "crashed", first), (2, "dead", "worker_killed")]


def test_the_first_record_of_a_group_may_be_the_one(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = deadly_group(services, database, topic_prefix, "sync", monkeypatch, partitions=1)
    workers = Workers(tmp_path)
    group.publish(Increment(counter=f"c{n % KEYS}", amount=n, note="exit" if n in (0, 3) else None) for n in range(14))
    try:
        with Forwarder(database, services.bootstrap):
            for _ in range(2):
                workers.start()
            eventually(lambda: group.states() == {"done": 12, "dead": 2} and group.settled(), "end of all", SECONDS)
        assert len(workers.killed()) == 1
    finally:
        workers.stop()
    in_order(group, 14, {0, 3})


def test_one_that_was_parked_behind_its_key_goes_round_no_circle(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = deadly_group(services, database, topic_prefix, "sync", monkeypatch)
    workers = Workers(tmp_path)
    ids = group.publish(
        Increment(counter="c0", amount=n, note={0: "later", 7: "segfault"}.get(n)) for n in range(0, 28, KEYS)
    )
    try:
        with Forwarder(database, services.bootstrap):
            workers.start().wait(SECONDS)
            assert group.states() == {"done": 1, "parked": 3}
            second = workers.start()
            eventually(lambda: group.states() == {"done": 3, "dead": 1} and group.settled(), "end of all", SECONDS)
        assert second.poll() is None
    finally:
        workers.stop()
    assert group.query("select command_id, reason from onceward.dead_letters") == [(ids[1], "worker_killed")]
    rows = group.query("select amount, attempt from effect order by seq")
    assert rows == [(0, 2), (14, 1), (21, 1)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_killing_workers_makes_no_dead_letters(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    group = deadly_group(services, database, topic_prefix, mode, monkeypatch)
    workers = Workers(tmp_path)
    group.publish(Increment(counter=f"c{n % KEYS}", amount=n, note="slow") for n in range(210))
    try:
        with Forwarder(database, services.bootstrap):
            for kill in range(4):
                worker = workers.start()
                eventually(functools.partial(assigned, workers, kill), "worker", SECONDS)
                time.sleep(1.5)  # whatever it is doing then
                worker.kill()
                worker.wait()
            workers.start()
            eventually(lambda: group.states() == {"done": 210} and group.settled(), "end of all", SECONDS)
    finally:
        workers.stop()
    assert any("partitions.wary" in workers.log(n) for n in range(1, 5))
    assert not group.count("select count(*) from onceward.attempts")
    in_order(group, 210, set())


def test_whoever_follows_a_drained_worker_is_not_wary(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = deadly_group(services, database, topic_prefix, "sync", monkeypatch)
    workers = Workers(tmp_path)
    try:
        with Forwarder(database, services.bootstrap):
            first = workers.start()
            group.publish(Increment(counter=f"c{n % KEYS}", amount=n) for n in range(28))
            eventually(lambda: group.states() == {"done": 28}, "first effects", SECONDS)
            first.send_signal(signal.SIGTERM)
            assert first.wait(30) == 0
            second = workers.start()
            group.publish(Increment(counter=f"c{n % KEYS}", amount=n) for n in range(28, 56))
            eventually(lambda: group.states() == {"done": 56}, "second effects", SECONDS)
            assert not children_of(second.pid)
            assert not any("partitions.wary" in workers.log(n) for n in range(2))
    finally:
        workers.stop()
    in_order(group, 56, set())


def test_without_a_name_for_the_app_threads_go_on_and_it_is_told_once(
    services: Services, database: str, topic_prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = deadly_group(services, database, topic_prefix, "sync", monkeypatch)
    monkeypatch.setenv("DEADLY_NAMELESS", "1")
    workers = Workers(tmp_path)
    try:
        with Forwarder(database, services.bootstrap):
            first = workers.start()
            eventually(lambda: "partitions.assigned" in workers.log(0), "worker", SECONDS)
            first.kill()
            group.publish(Increment(counter=f"c{n % KEYS}", amount=n) for n in range(28))
            workers.start()
            eventually(lambda: group.states() == {"done": 28}, "effects", SECONDS)
        assert workers.log(1).count("cells.unavailable") == 1
    finally:
        workers.stop()
    in_order(group, 28, set())
