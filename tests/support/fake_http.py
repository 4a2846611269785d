"""A registry that misbehaves: an HTTP server whose answers a test decides, request by request."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

Answer: TypeAlias = Callable[["Request"], tuple[int, Any] | None]


class Request(BaseHTTPRequestHandler):
    """One request; the answer function may also write to it itself and return None."""

    protocol_version = "HTTP/1.1"
    body: Any = None

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.body = json.loads(self.rfile.read(length)) if length else None
        server = self.server
        assert isinstance(server, Server)
        with server.lock:
            server.seen.append(f"{self.command} {self.path}")
        try:
            answer = server.answer(self)
            if answer is None:
                return
            content = json.dumps(answer[1]).encode()
            self.send_response(answer[0])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            self.close_connection = True

    do_GET = do_POST = do_PUT = _serve

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


class Server(ThreadingHTTPServer):
    """What was asked is in `seen`."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.answer = answer
        self.seen: list[str] = []
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def answering(answer: Answer) -> Iterator[Server]:
    """A server for the time of the block."""
    server = Server(answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
