"""A registry that hangs, fails or is away costs a caller its time-out at most, is not flooded, and loses nothing known."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onceward_schemas.codec import Codec
from onceward_schemas.errors import (
    OncewardError,
    RegistryUnavailableError,
    SchemaError,
    SchemaIncompatibleError,
    SchemaMissingError,
    SettingsError,
    UndecodableError,
)
from onceward_schemas.registry import Breaker, RegistryClient
from tests.support.commands import Increment
from tests.support.fake_http import Request, answering

AVRO = Increment.SCHEMA.avro
GOOD = {"schema": json.dumps(AVRO)}
MISSING = (404, {"error_code": 40403, "message": "Schema not found"})


def test_many_threads_that_want_one_schema_make_one_request() -> None:
    release = threading.Event()

    def answer(request: Request) -> tuple[int, Any]:
        release.wait(5)
        return 200, GOOD

    with answering(answer) as server, ThreadPoolExecutor(32) as pool:
        client = RegistryClient(server.url)
        waiting = [pool.submit(client.schema, 7) for _ in range(32)]
        release.set()
        assert all(found.result(5) == AVRO for found in waiting)
        assert client.schema(7) == AVRO
        assert len(server.seen) == 1


def test_a_hung_registry_costs_one_time_out() -> None:
    release = threading.Event()

    def answer(request: Request) -> None:
        release.wait(20)

    with answering(answer) as server:
        client = RegistryClient(server.url, timeout_seconds=0.3)
        started = time.monotonic()
        with pytest.raises(RegistryUnavailableError, match=r"within 0\.3 s"):
            client.schema(1)
        assert time.monotonic() - started < 2
        started = time.monotonic()
        for schema_id in range(2, 50):
            with pytest.raises(RegistryUnavailableError):
                client.schema(schema_id)
        assert time.monotonic() - started < 2, "the breaker answers at once"
        assert len(server.seen) <= 6
        release.set()


def test_a_registry_that_drips_bytes_for_ever_costs_one_time_out() -> None:
    done = threading.Event()

    def answer(request: Request) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while not done.wait(0.02):
            request.wfile.write(b" ")
            request.wfile.flush()

    with answering(answer) as server:
        started = time.monotonic()
        with pytest.raises(RegistryUnavailableError):
            RegistryClient(server.url, timeout_seconds=0.3).schema(1)
        assert time.monotonic() - started < 2
        done.set()


def test_a_registry_that_is_away_is_said_to_be_away() -> None:
    client = RegistryClient("http://127.0.0.1:9/apis", timeout_seconds=2)
    for call in (lambda: client.schema(1), lambda: client.versions("a"), lambda: client.register("a", AVRO)):
        with pytest.raises(RegistryUnavailableError, match=r"127\.0\.0\.1:9/apis") as caught:
            call()
        assert "ONCEWARD_REGISTRY_URL" in (caught.value.remedy or "")


def test_what_is_known_stays_known_while_the_registry_is_away() -> None:
    away = threading.Event()

    def answer(request: Request) -> tuple[int, Any]:
        if away.is_set():
            return 503, {"error_code": 50301, "message": "starting"}
        if request.command == "POST":
            return 200, {"subject": "test.Increment", "version": 1, "id": 7, "schema": json.dumps(AVRO)}
        return 200, GOOD

    with answering(answer) as server:
        codec = Codec(RegistryClient(server.url, timeout_seconds=2), [Increment])
        command = Increment(counter="a")
        payload = codec.encode(command)
        assert codec.decode(payload) == command
        away.set()
        assert codec.decode(codec.encode(command)) == command
        with pytest.raises(RegistryUnavailableError, match="HTTP 503"):
            codec.decode(b"\0\0\0\0\x09abc")


def test_it_works_again_once_the_registry_is_back() -> None:
    back = threading.Event()
    with answering(lambda request: (200, GOOD) if back.is_set() else (500, {})) as server:
        client = RegistryClient(server.url, timeout_seconds=2)
        with pytest.raises(RegistryUnavailableError):
            client.schema(1)
        back.set()
        deadline = time.monotonic() + 5
        found = None
        while found is None and time.monotonic() < deadline:
            try:
                found = client.schema(1)
            except RegistryUnavailableError:
                time.sleep(0.02)
        assert found == AVRO


def test_an_unknown_id_is_asked_for_once_in_a_while() -> None:
    with answering(lambda request: MISSING) as server:
        codec = Codec(RegistryClient(server.url), [Increment])
        for _ in range(50):
            with pytest.raises(UndecodableError) as caught:
                codec.decode(b"\0\0\0\0\x09abc")
            assert caught.value.reason == "schema_missing"
        assert len(server.seen) == 1


REFUSALS: list[tuple[tuple[int, Any], type[OncewardError], str]] = [
    (MISSING, SchemaMissingError, "does not know schema id 1"),
    ((401, {"error_code": 401, "message": "no"}), RegistryUnavailableError, "ONCEWARD_REGISTRY_PASSWORD"),
    ((403, "no"), RegistryUnavailableError, "refuses access"),
    ((404, "<html>"), RegistryUnavailableError, "no schema registry at this path"),
    ((429, {}), RegistryUnavailableError, "HTTP 429"),
    ((200, {"schema": "{"}), SchemaError, "not JSON"),
    ((200, {"schema": "syntax = 'proto3'", "schemaType": "PROTOBUF"}), SchemaError, "not Avro"),
    ((200, {**GOOD, "references": [{"name": "a", "subject": "a", "version": 1}]}), SchemaError, "in one piece"),
]


@pytest.mark.parametrize(("answer", "error", "text"), REFUSALS)
def test_each_bad_answer_is_told_apart(answer: tuple[int, Any], error: type[OncewardError], text: str) -> None:
    with answering(lambda request: answer) as server:
        with pytest.raises(error) as caught:
            RegistryClient(server.url, timeout_seconds=2).schema(1)
        assert text in str(caught.value)
        assert caught.value.remedy


def test_the_password_travels_in_the_header_and_is_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    headers: list[str | None] = []

    def answer(request: Request) -> tuple[int, Any]:
        headers.append(request.headers.get("Authorization"))
        return 401, {}

    caplog.set_level("DEBUG")
    for chatty in ("httpx", "httpx2", "httpcore", "httpcore2"):
        caplog.set_level("DEBUG", logger=chatty)
    with answering(answer) as server:
        for client in (
            RegistryClient(server.url, user="ada", password="secret"),
            RegistryClient(server.url.replace("://", "://ada:secret@")),
        ):
            with pytest.raises(RegistryUnavailableError) as caught:
                client.schema(1)
            assert "secret" not in str(caught.value)
    assert caplog.text
    assert "secret" not in caplog.text
    assert headers == ["Basic YWRhOnNlY3JldA=="] * 2


def test_registering_asks_for_transitive_compatibility_and_no_associations() -> None:
    levels: list[Any] = []

    def answer(request: Request) -> tuple[int, Any]:
        if request.path.startswith("/config"):
            if request.command == "PUT":
                levels.append(request.body)
                return 200, request.body
            return 200, {"compatibilityLevel": "NONE"}
        return 200, {"id": 4}

    with answering(answer) as server:
        assert RegistryClient(server.url).register("test.Increment", AVRO) == 4
        assert levels == [{"compatibility": "BACKWARD_TRANSITIVE"}]
        assert not [path for path in server.seen if "associations" in path]
        assert "POST /subjects/test.Increment/versions" in server.seen[-1]


@pytest.mark.parametrize(("status", "error"), [(409, SchemaIncompatibleError), (422, SchemaError)])
def test_a_refused_registration_carries_the_reason(status: int, error: type[SchemaError]) -> None:
    def answer(request: Request) -> tuple[int, Any]:
        if request.path.startswith("/config"):
            return 200, {"compatibilityLevel": "FULL_TRANSITIVE"}
        return status, {"error_code": status, "message": "because of b"}

    with answering(answer) as server, pytest.raises(error, match="because of b"):
        RegistryClient(server.url).register("test.Increment", AVRO)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RegistryClient("localhost:8081"),
        lambda: RegistryClient("http://x", password="p"),
        lambda: RegistryClient("https://x", ca_location="/nowhere.pem"),
        lambda: RegistryClient("http://a:b@x", user="c", password="secret"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_once(make: Callable[[], RegistryClient]) -> None:
    with pytest.raises(SettingsError) as caught:
        make()
    assert "secret" not in str(caught.value)


def test_the_breaker_waits_longer_after_each_failure_and_lets_one_through() -> None:
    now = 0.0
    breaker = Breaker(timeout_seconds=5, first_seconds=1, longest_seconds=8, clock=lambda: now)
    waits = []
    for _ in range(6):
        assert breaker.allows()
        breaker.failed()
        failed_at = now
        while not breaker.allows():
            now += 0.01
        assert not breaker.allows(), "only one probe at a time"
        waits.append(now - failed_at)
        now += 100
    assert all(0.5 <= wait <= 8.1 for wait in waits)
    assert waits[-1] >= 4
    breaker.succeeded()
    assert breaker.allows()
    assert breaker.allows()


def test_a_schema_that_differs_in_documentation_only_needs_no_registering() -> None:
    told = AVRO | {"doc": "Said better."}

    def answer(request: Request) -> tuple[int, Any]:
        if request.command == "POST":
            return MISSING
        if request.path.endswith("/versions"):
            return 200, [1]
        return 200, {"subject": "test.Increment", "version": 1, "id": 7, **GOOD}

    with answering(answer) as server:
        client = RegistryClient(server.url)
        assert client.schema_id("test.Increment", told) == 7
        with pytest.raises(SchemaMissingError, match=r"this schema of test\.Increment"):
            client.schema_id("test.Increment", told | {"fields": []})
