"""Metrics, liveness and readiness over HTTP; what is not ready is named."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from onceward_runtime import events
from onceward_runtime.health import HealthServer
from onceward_runtime.settings import Settings
from onceward_schemas.errors import SettingsError


class Part:
    """A service whose state the test sets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive: bool | Exception = True
        self.is_ready = True

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def alive(self) -> bool:
        if isinstance(self.is_alive, Exception):
            raise self.is_alive
        return self.is_alive

    def ready(self) -> bool:
        return self.is_ready


@pytest.fixture
def parts() -> list[Part]:
    return [Part("relay"), Part("worker")]


@pytest.fixture
def server(parts: list[Part]) -> Iterator[HealthServer]:
    found = HealthServer(Settings(http_port=0), parts)
    found.start()
    yield found
    found.stop()


def get(server: HealthServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def report(server: HealthServer, path: str) -> tuple[int, dict[str, Any]]:
    status, body = get(server, path)
    return status, json.loads(body)


def test_metrics_are_served(server: HealthServer) -> None:
    events.COMMANDS.labels("hr.bulk", "hr.Apply", "done").inc()
    status, body = get(server, "/metrics")
    assert status == 200
    assert 'onceward_commands_total{lane="hr.bulk",outcome="done",type="hr.Apply"}' in body


def test_a_healthy_process_is_alive_and_ready(server: HealthServer) -> None:
    assert report(server, "/livez") == (200, {"ok": True, "failing": [], "services": ["relay", "worker"]})
    assert report(server, "/readyz?verbose")[0] == 200


def test_the_service_that_is_not_ready_is_named(server: HealthServer, parts: list[Part]) -> None:
    parts[1].is_ready = False
    status, body = report(server, "/readyz")
    assert (status, body["failing"]) == (503, ["worker"])
    assert report(server, "/livez")[0] == 200


@pytest.mark.parametrize("state", [False, RuntimeError("broken")])
def test_the_service_that_is_not_alive_is_named(server: HealthServer, parts: list[Part], state: Any) -> None:
    parts[0].is_alive = state
    status, body = report(server, "/livez")
    assert (status, body["failing"]) == (503, ["relay"])


def test_other_paths_are_not_found(server: HealthServer) -> None:
    assert get(server, "/")[0] == 404


def test_a_taken_port_is_named(server: HealthServer) -> None:
    with pytest.raises(SettingsError, match="ONCEWARD_HTTP_PORT"):
        HealthServer(Settings(http_port=server.port), []).start()


def test_without_a_port_nothing_is_served() -> None:
    silent = HealthServer(Settings(), [])
    silent.start()
    assert silent.port is None
    silent.stop()


def test_stopping_twice_is_fine(server: HealthServer) -> None:
    server.stop()
    server.stop()
    assert server.port is None
