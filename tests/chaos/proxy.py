"""TCP proxies between a process and its servers, which can stall (nothing passes, nobody is told) and cut connections."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

HOST = "127.0.0.1"
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing says so with a reset
_Result = TypeVar("_Result")


class Proxy:
    """Listens at `port`, and passes on to `target` once that is known. Made by `Proxies.open`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, listener: socket.socket) -> None:
        self._loop = loop
        self._listener = listener
        self._server: asyncio.Server | None = None
        self._passing = asyncio.Event()
        self._passing.set()
        self._refusing = False
        self._writers: set[asyncio.StreamWriter] = set()
        self.port: int = listener.getsockname()[1]
        self.target = 0

    def stall(self) -> None:
        """Nothing passes, in either direction, until `resume`; what is under way arrives then."""
        self._loop.call_soon_threadsafe(self._passing.clear)

    def cut(self) -> None:
        """Reset all connections, and every new one until `resume`."""
        self._loop.call_soon_threadsafe(self._cut)

    def resume(self) -> None:
        """Pass everything again."""
        self._loop.call_soon_threadsafe(self._resume)

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, sock=self._listener)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._cut()

    def _resume(self) -> None:
        self._refusing = False
        self._passing.set()

    def _cut(self) -> None:
        self._refusing = True
        for writer in list(self._writers):
            _reset(writer)
        self._passing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        onward: asyncio.StreamWriter | None = None
        try:
            await self._passing.wait()
            if self._refusing:
                return
            answers, onward = await asyncio.open_connection(HOST, self.target)
            self._writers.add(onward)
            pumps = [asyncio.ensure_future(self._pump(*pair)) for pair in ((reader, onward), (answers, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
        except OSError:
            pass  # the server is away, which the client shall see
        finally:
            for each in (writer, onward):
                if each is not None:
                    self._writers.discard(each)
                    _reset(each)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._passing.wait()
                writer.write(data)
                await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    found: socket.socket | None = writer.get_extra_info("socket")
    if found is not None and found.fileno() >= 0:
        with suppress(OSError):
            found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


class Proxies:
    """All proxies of a trial, in one thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxies", daemon=True)
        self._opened: list[Proxy] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        async def close() -> None:
            for proxy in self._opened:
                proxy.close()
            await asyncio.sleep(0.05)  # lets the connections' tasks end

        self._do(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def open(self, target: int = 0) -> Proxy:
        """A proxy at a free port; it listens on return."""
        proxy = Proxy(self._loop, socket.create_server((HOST, 0)))
        proxy.target = target
        self._do(proxy.listen())
        self._opened.append(proxy)
        return proxy

    def _do(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)
