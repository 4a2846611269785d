"""Free ports for the servers, remembered in the stack's folder and taken again at the next start when still free."""

from __future__ import annotations

import json
import random
import socket
from contextlib import ExitStack
from pathlib import Path

from onceward_schemas.errors import DevstackError

HOST = "127.0.0.1"
# Below the range from which Linux takes ports for outgoing connections, so that none is taken in between.
_RANGE = range(20000, 32000)
_FILE = "ports.json"


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def is_open(port: int) -> bool:
    """Whether a server accepts connections there."""
    try:
        socket.create_connection((HOST, port), 0.2).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """As many different ports as asked for, all free."""
    with ExitStack() as held:
        ports: list[int] = []
        while len(ports) < count:
            port = random.choice(_RANGE)
            try:
                held.enter_context(socket.create_server((HOST, port)))
            except OSError:
                continue
            ports.append(port)
        return ports


def choose_ports(home: Path, names: tuple[str, ...], wanted: dict[str, int] | None = None) -> dict[str, int]:
    """A port for each name: the wanted one, else that of the last start if still free, else a new one.

    Raises: DevstackError when a wanted port is taken.
    """
    wanted = wanted or {}
    for name, port in wanted.items():
        if not is_free(port):
            raise DevstackError(
                f"Port {port}, asked for {name}, is taken.",
                remedy=f"End what listens there (ss -ltnp 'sport = :{port}'), or leave the port out to get a free one.",
            )
    remembered = _remembered(home)
    kept = {name: port for name, port in remembered.items() if name in names and is_free(port)} | wanted
    missing = [name for name in names if name not in kept]
    chosen = kept | dict(zip(missing, free_ports(len(missing)), strict=True))
    (home / _FILE).write_text(json.dumps(chosen, indent=2) + "\n")
    return chosen


def _remembered(home: Path) -> dict[str, int]:
    try:
        content = json.loads((home / _FILE).read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): port for name, port in content.items() if isinstance(port, int)}
