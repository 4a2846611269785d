"""`python -m onceward_devstack.startup_cache`: let Java remember what it loads, so that later starts are faster.

Costs one start and a long stop; worth it where stacks start often, as in continuous integration.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from onceward_devstack import kafka, registry
from onceward_devstack.downloads import Downloads
from onceward_devstack.stack import Stack
from onceward_schemas.errors import DevstackError

_STOP_SECONDS = 180


def record(downloads: Downloads | None = None) -> None:
    """Run the servers once and keep what Java wrote beside their files; does nothing when it is there.

    Raises: DevstackError when Java wrote nothing.
    """
    program = (downloads or Downloads()).fetch()
    targets = (program / kafka.STARTUP_CACHE, program / registry.STARTUP_CACHE)
    if all(target.exists() for target in targets):
        return
    home = Path(tempfile.mkdtemp(prefix="onceward-record-", dir="/var/tmp"))
    home.chmod(0o755)
    try:
        stack = Stack(home, downloads=downloads)
        servers: tuple[kafka.Kafka | registry.Registry, ...] = (stack.kafka, stack.registry)
        for server in servers:
            server.more_options = (f"-XX:AOTCacheOutput={home / server.name}.aot",)
        with stack:
            for server in servers:
                server.stop(_STOP_SECONDS)
        for server, target in zip(servers, targets, strict=True):
            _keep(home / f"{server.name}.aot", target)
    finally:
        shutil.rmtree(home)


def _keep(written: Path, target: Path) -> None:
    if not written.exists():
        raise DevstackError(f"Java wrote no {written.name}.", remedy="Go on without; only starts are slower.")
    staging = target.with_suffix(f".{os.getpid()}")
    shutil.move(written, staging)
    staging.replace(target)


if __name__ == "__main__":
    record()
