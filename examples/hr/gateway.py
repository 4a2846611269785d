"""A mail gateway of its own: a real HTTP server that remembers idempotency keys and logs every request it sees.

    python -m examples.hr.gateway --port 8025 --log gateway.jsonl

POST /mail            {"employee": 7, "event": "..."} with the header Idempotency-Key
POST /control         {"broken": [7, 9]} refuses these employees with 422 from now on;
                      {"outage": {"after": 100, "seconds": 20}} answers 503 for so long once so many mails are delivered
GET  /outage          whether it is "to come", "on" or "over"

A repeated key that was delivered before is answered as delivered, and not delivered again. The log has one JSON line a request.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_SECONDS_PER_MAIL = 0.01


class Gateway(ThreadingHTTPServer):
    """The server and its memory. One lock: what it answers and what it logs never disagree."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, log: Path) -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self._lock = threading.Lock()
        self._log = log.open("a", encoding="utf-8")
        self._outage_after: int | None = None
        self._outage_seconds = 0.0
        self._outage_until: float | None = None
        self._broken: frozenset[int] = frozenset()
        self._delivered: set[str] = set()

    def control(self, wish: dict[str, Any]) -> None:
        """Change how it behaves from now on."""
        with self._lock:
            self._broken = frozenset(wish.get("broken", self._broken))
            if outage := wish.get("outage"):
                self._outage_after, self._outage_seconds = outage["after"], outage["seconds"]

    def outage(self) -> str:
        """Where the outage stands."""
        with self._lock:
            if self._outage_until is None:
                return "to come"
            return "on" if time.monotonic() < self._outage_until else "over"

    def deliver(self, key: str, mail: dict[str, Any]) -> int:
        """Decide on one request, log it, and return the HTTP status."""
        with self._lock:
            repeat = key in self._delivered
            if self._outage_until is None and len(self._delivered) == self._outage_after:
                self._outage_until = time.monotonic() + self._outage_seconds
            if self._outage_until is not None and time.monotonic() < self._outage_until:
                status = 503
            elif mail["employee"] in self._broken:
                status = 422
            else:
                status = 200
                self._delivered.add(key)
            line = {"at": time.time(), "key": key, "employee": mail["employee"], "status": status, "repeat": repeat}
            self._log.write(json.dumps(line) + "\n")
            self._log.flush()
            return status


class _Request(BaseHTTPRequestHandler):
    server: Gateway
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        self._answer(200, {"status": self.server.outage()})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/control":
            self.server.control(body)
            self._answer(200, {"status": "ok"})
            return
        time.sleep(_SECONDS_PER_MAIL)
        status = self.server.deliver(self.headers["Idempotency-Key"], body)
        reasons = {200: "delivered", 422: "no mailbox for this employee", 503: "the mail server is down"}
        self._answer(status, {"status": reasons[status]})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        payload = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def log_message(self, format: str, *args: object) -> None:
        """Silent: the log file has every request."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    options = parser.parse_args()
    Gateway(options.port, options.log).serve_forever()


if __name__ == "__main__":
    main()
