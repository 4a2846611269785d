"""However the process that owns a stack ends, its servers end with it, and the next start finds their data."""

from __future__ import annotations

import os
import signal

import psycopg

from onceward_devstack.processes import start_ticks
from tests.integration.devstack.conftest import Dev, addresses, processes, wait_until_gone


def test_kill_nine_ends_all_servers_and_loses_no_data(dev: Dev) -> None:
    dev("up")
    status = dev.status()
    where = addresses(status)
    with psycopg.connect(where["postgres"]) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")

    before = processes(status)
    assert len(before) > 4
    os.kill(status["pid"], signal.SIGKILL)
    assert wait_until_gone(before) == []
    assert dev.status(code=1)["phase"] == "stopped"

    dev("up")
    status = dev.status()
    assert addresses(status) == where
    with psycopg.connect(where["postgres"]) as connection:
        assert connection.execute("SELECT n FROM kept").fetchone() == (7,)
    one_dead_server_is_shown_and_brought_back(dev)


def one_dead_server_is_shown_and_brought_back(dev: Dev) -> None:
    status = dev.status()
    kafka = next(service["pid"] for service in status["services"] if service["name"] == "kafka")
    started = start_ticks(kafka)
    assert started is not None
    os.kill(kafka, signal.SIGKILL)
    assert wait_until_gone({kafka: started}) == []
    states = {service["name"]: service["state"] for service in dev.status(code=1)["services"]}
    assert states == {"kafka": "ended", "postgres": "running", "registry": "running"}
    dev("up")
    assert addresses(dev.status()) == addresses(status)
