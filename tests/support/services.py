"""The services that tests run on: embedded by default, in containers, or at given addresses (ONCEWARD_TEST_SERVICES)."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from onceward_devstack.kafka import warm_groups
from onceward_devstack.ports import free_ports
from onceward_devstack.stack import Stack, temporary_stack
from tests.support.databases import fresh_database, template_database
from tests.support.topics import delete_topics

ROOT = Path(__file__).parents[2]
MODE_VARIABLE = "ONCEWARD_TEST_SERVICES"
# Not waiting for the disk is safe for tests: they kill processes, not the machine.
# The checker of tests/chaos asks when each effect was committed.
FAST_POSTGRES = {"fsync": "off", "track_commit_timestamp": "on"}


@dataclass(frozen=True)
class Services:
    """Addresses, and the stack behind them when this process started it."""

    bootstrap: str
    registry_url: str
    dsn: str
    stack: Stack | None = None


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """Kafka, a registry and PostgreSQL for the whole session. Never stop them: take own_stack for that."""
    mode = os.environ.get(MODE_VARIABLE, "embedded")
    ways = {"embedded": _embedded, "given": _given, "testcontainers": _containers}
    if mode not in ways:
        pytest.exit(f"{MODE_VARIABLE}={mode} is unknown; choose one of {', '.join(ways)}.", returncode=4)
    with ways[mode]() as found:
        yield found


@pytest.fixture(scope="session")
def migrated_template(services: Services) -> Iterator[str]:
    """Name of the database that `database` copies."""
    with template_database(services.dsn) as name:
        yield name


@pytest.fixture
def database(services: Services, migrated_template: str) -> Iterator[str]:
    """The dsn of a fresh, migrated database, dropped after the test with its sessions and slots."""
    with fresh_database(services.dsn, migrated_template) as dsn:
        yield dsn


@pytest.fixture
def own_stack() -> Iterator[Stack]:
    """A started stack for this test alone, to kill, freeze and restart. Its tables: fresh_database(stack.postgres.dsn)."""
    with temporary_stack(FAST_POSTGRES) as stack:
        yield stack


@pytest.fixture
def topic_prefix(services: Services) -> Iterator[str]:
    """A prefix that no other test uses; topics that begin with it are deleted after the test."""
    prefix = f"t{uuid.uuid4().hex[:8]}."
    yield prefix
    delete_topics(services.bootstrap, prefix)


@contextmanager
def _embedded() -> Iterator[Services]:
    with temporary_stack(FAST_POSTGRES) as stack:
        yield Services(stack.kafka.bootstrap, stack.registry.url, stack.postgres.dsn, stack)


@contextmanager
def _given() -> Iterator[Services]:
    names = ("ONCEWARD_KAFKA_BOOTSTRAP_SERVERS", "ONCEWARD_REGISTRY_URL", "ONCEWARD_DATABASE_URL")
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        pytest.exit(f"{MODE_VARIABLE}=given needs {', '.join(missing)} too.", returncode=4)
    bootstrap, registry_url, dsn = (os.environ[name] for name in names)
    yield Services(bootstrap, registry_url, dsn)


@contextmanager
def _containers() -> Iterator[Services]:
    """The services of docker-compose.yml, on free ports and under a name of their own."""
    _require_docker()
    from testcontainers.compose import DockerCompose

    kafka, registry, postgres = free_ports(3)
    project = f"onceward-test-{uuid.uuid4().hex[:8]}"
    settings = {"KAFKA_PORT": kafka, "REGISTRY_PORT": registry, "POSTGRES_PORT": postgres}
    env_file = Path(os.environ.get("TMPDIR", "/tmp")) / f"{project}.env"
    env_file.write_text(
        "".join(f"{name}={value}\n" for name, value in settings.items()) + f"COMPOSE_PROJECT_NAME={project}\n"
    )
    try:
        with DockerCompose(ROOT, "docker-compose.yml", env_file=str(env_file)):
            bootstrap = f"localhost:{kafka}"
            warm_groups(bootstrap)
            yield Services(
                bootstrap,
                f"http://localhost:{registry}/apis/ccompat/v7",
                f"postgresql://postgres:onceward@localhost:{postgres}/onceward",
            )
    finally:
        env_file.unlink()


def _require_docker() -> None:
    way_out = f"Start Docker with its compose plugin, or leave {MODE_VARIABLE} out to run without it."
    if shutil.which("docker") is None:
        pytest.exit(f"{MODE_VARIABLE}=testcontainers, but there is no docker program. {way_out}", returncode=4)
    for command in (["docker", "info"], ["docker", "compose", "version"]):
        answer = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
        if answer.returncode:
            said = (answer.stderr or answer.stdout).strip().splitlines()[-1:]
            pytest.exit(f"`{' '.join(command)}` failed: {' '.join(said)}. {way_out}", returncode=4)
