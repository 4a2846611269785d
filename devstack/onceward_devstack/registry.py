"""Apicurio Registry through its Confluent-compatible API, with its data in the stack's PostgreSQL."""

from __future__ import annotations

import signal
import urllib.request
from pathlib import Path

from onceward_devstack.downloads import REGISTRY_COORDINATE, java_program, pinned_version
from onceward_devstack.jvm import jvm_options
from onceward_devstack.launcher import launch
from onceward_devstack.ports import HOST
from onceward_devstack.server import Server

STARTUP_CACHE = "registry.aot"


class Registry(Server):
    """The registry; clients use `url`."""

    def __init__(
        self, home: Path, program: Path, *, port: int, management_port: int, jdbc_url: str, heap_mib: int = 256
    ) -> None:
        super().__init__("registry", home, version=pinned_version(REGISTRY_COORDINATE), port=port)
        self.management_port = management_port
        self.heap_mib = heap_mib
        self.more_options: tuple[str, ...] = ()
        self._program = program
        self._jdbc_url = jdbc_url

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/apis/ccompat/v7"

    @property
    def address(self) -> str:
        return self.url

    def launch(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        options = [*jvm_options(self.heap_mib, self._program / STARTUP_CACHE), *self.more_options]
        self._process = launch(
            [java_program(), *options, "-jar", self._program / "registry" / "quarkus-run.jar"],
            log=self.log,
            folder=self.home,
            death_signal=signal.SIGKILL,
            environment=self._environment(),
        )

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.management_port}/health/ready", timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _environment(self) -> dict[str, str]:
        return {
            "QUARKUS_HTTP_HOST": HOST,
            "QUARKUS_HTTP_PORT": str(self.port),
            "QUARKUS_MANAGEMENT_HOST": HOST,
            "QUARKUS_MANAGEMENT_PORT": str(self.management_port),  # else 9000, and two stacks collide
            "QUARKUS_HTTP_ACCESS_LOG_ENABLED": "false",
            "APICURIO_STORAGE_KIND": "sql",
            "APICURIO_STORAGE_SQL_KIND": "postgresql",
            "APICURIO_DATASOURCE_URL": self._jdbc_url,
            "APICURIO_DATASOURCE_USERNAME": "postgres",
            "APICURIO_DATASOURCE_PASSWORD": "postgres",
            "APICURIO_DATASOURCE_JDBC_INITIAL_SIZE": "1",  # else it holds 20 connections
            "APICURIO_DATASOURCE_JDBC_MIN_SIZE": "1",
            "APICURIO_DATASOURCE_JDBC_MAX_SIZE": "10",
        }
