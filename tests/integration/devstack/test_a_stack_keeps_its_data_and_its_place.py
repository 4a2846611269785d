"""down and up again: same ports, same topics, tables and schemas; two stacks do not touch each other."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request

import psycopg

from tests.integration.devstack.conftest import Dev, addresses, left_of, processes
from tests.support.topics import create_topics, topic_names

SCHEMA = json.dumps({"schema": json.dumps({"type": "record", "name": "Kept", "fields": []})})


def subjects(registry: str) -> list[str]:
    with urllib.request.urlopen(f"{registry}/subjects", timeout=10) as answer:
        found: list[str] = json.load(answer)
        return found


def test_everything_survives_down_and_up(dev: Dev) -> None:
    dev("up")
    status = dev.status()
    where = addresses(status)
    assert status["phase"] == "running"
    assert {service["version"] for service in status["services"]} == {"4.4.0", "18.6", "3.3.3"}
    assert all(service["memory_mib"] > 5 for service in status["services"])

    create_topics(where["kafka"], {"kept": 2})
    with psycopg.connect(where["postgres"]) as connection:
        connection.execute("CREATE TABLE kept (id int)")
    request = urllib.request.Request(
        f"{where['registry']}/subjects/kept-value/versions", SCHEMA.encode(), {"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=10).close()

    before = processes(status)
    dev("down")
    assert left_of(before) == []
    dev("up")
    assert addresses(dev.status()) == where
    assert "kept" in topic_names(where["kafka"])
    with psycopg.connect(where["postgres"]) as connection:
        assert connection.execute("SELECT to_regclass('kept') IS NOT NULL").fetchone() == (True,)
    assert subjects(where["registry"]) == ["kept-value"]

    shell = ["sh", "-c", f'eval "$({" ".join(dev.command("env"))})"; echo "$ONCEWARD_DATABASE_URL"']
    assert subprocess.check_output(shell, text=True).strip() == where["postgres"]
    assert dev("run", "sh", "-c", "echo $ONCEWARD_REGISTRY_URL").strip() == where["registry"]
    assert "exit 3" not in dev("run", "--", "sh", "-c", "exit 3", code=3)
    assert "ready to accept connections" in dev("logs", "postgres")

    dev("reset", "--yes")
    assert not (dev.home / "default").exists()


def test_two_stacks_run_side_by_side(dev: Dev) -> None:
    command = dev.command("up", "--name", "two", "--foreground", "-o", "json")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as foreground:
        try:
            before = two_beside_one(dev, foreground)
        finally:
            foreground.send_signal(signal.SIGINT)
            foreground.communicate(timeout=30)
    assert foreground.returncode == 0
    assert left_of(before) == []


def two_beside_one(dev: Dev, foreground: subprocess.Popen[str]) -> dict[int, int]:
    assert foreground.stdout is not None
    dev("up", "--name", "one")
    assert foreground.stdout.readline() == "{\n"  # printed when all its servers answer
    one, two = (addresses(dev.status(name)) for name in ("one", "two"))
    assert not set(one.values()) & set(two.values())
    with psycopg.connect(one["postgres"]) as connection:
        connection.execute("CREATE TABLE only_in_one (id int)")
    dev("down", "--name", "one")
    with psycopg.connect(two["postgres"]) as connection:
        assert connection.execute("SELECT to_regclass('only_in_one')").fetchone() == (None,)
    a_taken_port_is_refused(dev, "one", two["kafka"].rpartition(":")[2])
    return processes(dev.status("two"))


def a_taken_port_is_refused(dev: Dev, name: str, port: str) -> None:
    refused = dev("up", "--name", name, "--kafka-port", port, code=1)
    assert f"Port {port}, asked for kafka, is taken" in refused
    assert "Traceback" not in refused
    assert (dev.home / name / "postgres").exists()
