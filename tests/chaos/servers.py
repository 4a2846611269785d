"""The servers of a trial, and the doors through which its processes reach them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from onceward_devstack.stack import Stack, temporary_stack
from tests.chaos.proxy import Proxies, Proxy
from tests.support.services import Services

_SETTINGS = {"track_commit_timestamp": "on"}  # the checker asks when each effect was committed; fsync stays on


@dataclass(frozen=True, slots=True)
class Door:
    """One process's way to Kafka and to PostgreSQL."""

    kafka: Proxy
    postgres: Proxy

    def environment(self, dsn: str) -> dict[str, str]:
        """Settings with which a process goes through this door to a database."""
        return {
            "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS": f"127.0.0.1:{self.kafka.port}",
            "ONCEWARD_DATABASE_URL": re.sub(r":\d+/", f":{self.postgres.port}/", dsn),
        }

    def resume(self) -> None:
        """Open both."""
        self.kafka.resume()
        self.postgres.resume()


@dataclass(frozen=True, slots=True)
class Servers:
    """Addresses, the stack behind them, and the doors."""

    services: Services
    stack: Stack
    doors: tuple[Door, ...]


@contextmanager
def own_servers(doors: int) -> Iterator[Servers]:
    """A stack of its own, started."""
    made: list[Door] = []

    def prepare(stack: Stack) -> None:
        for _ in range(doors):
            door = Door(proxies.open(), proxies.open(stack.postgres.port))
            door.kafka.target = stack.kafka.listen_behind(door.kafka.port)
            made.append(door)

    with Proxies() as proxies, temporary_stack(_SETTINGS, prepare=prepare) as stack:
        services = Services(stack.kafka.bootstrap, stack.registry.url, stack.postgres.dsn, stack)
        yield Servers(services, stack, tuple(made))
