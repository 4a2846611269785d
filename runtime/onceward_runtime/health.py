"""Metrics and health over HTTP: /metrics, /livez (does it make progress?), /readyz (can it work now?)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from onceward_runtime import events, log
from onceward_runtime.service import Service
from onceward_runtime.settings import Settings
from onceward_schemas.errors import SettingsError


class HealthServer:
    """A service that speaks for `services`; does nothing where ONCEWARD_HTTP_PORT is not set."""

    name = "health"

    def __init__(self, settings: Settings, services: Sequence[Service]) -> None:
        self._host = settings.http_host
        self._wanted = settings.http_port
        self._services = services
        self._server: ThreadingHTTPServer | None = None

    @property
    def port(self) -> int | None:
        """The port that it listens on, once started."""
        return self._server.server_address[1] if self._server else None

    def start(self) -> None:
        """Listen. Raises: SettingsError when the address cannot be had."""
        if self._wanted is None or self._server is not None:
            return
        handler = type("Handler", (_Handler,), {"services": self._services})
        try:
            self._server = ThreadingHTTPServer((self._host, self._wanted), handler)
        except OSError as error:
            raise SettingsError(
                f"Metrics and health cannot be served at {self._host}:{self._wanted}: {error.strerror}.",
                remedy="Change ONCEWARD_HTTP_HOST or ONCEWARD_HTTP_PORT; 0 takes a free port.",
            ) from error
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name=self.name, daemon=True).start()
        log.emit(events.HEALTH_LISTENING, url=f"http://{self._host}:{self.port}")

    def stop(self) -> None:
        """Close the port."""
        server, self._server, self._wanted = self._server, None, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def alive(self) -> bool:
        return True

    def ready(self) -> bool:
        return True


class _Handler(BaseHTTPRequestHandler):
    services: Sequence[Service] = ()
    server_version = "onceward"
    sys_version = ""
    timeout = 10

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, encode(REGISTRY), kind)
        elif path == "/livez":
            self._report(lambda service: service.alive())
        elif path == "/readyz":
            self._report(lambda service: service.ready())
        else:
            self._answer(404, b"There is /metrics, /livez and /readyz.\n", "text/plain; charset=utf-8")

    def _report(self, ask: Callable[[Service], bool]) -> None:
        failing = [service.name for service in self.services if not _holds(ask, service)]
        body: dict[str, Any] = {"ok": not failing, "failing": failing, "services": [s.name for s in self.services]}
        self._answer(503 if failing else 200, json.dumps(body).encode() + b"\n", "application/json")

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds; they are not events."""


def _holds(ask: Callable[[Service], bool], service: Service) -> bool:
    try:
        return ask(service)
    except Exception:
        return False
