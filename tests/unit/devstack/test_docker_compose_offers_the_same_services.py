"""docker-compose.yml names the versions that `onceward dev` runs, checks their health and stays on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from onceward_devstack.downloads import KAFKA_COORDINATE, REGISTRY_COORDINATE, pinned_version
from onceward_devstack.requirements import postgres_version

TEXT = (Path(__file__).parents[3] / "docker-compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]


def test_the_images_are_the_versions_that_run_without_docker() -> None:
    assert {name: service["image"] for name, service in SERVICES.items()} == {
        "kafka": f"apache/kafka:{pinned_version(KAFKA_COORDINATE)}",
        "postgres": f"postgres:{postgres_version().split('.')[0]}",
        "registry": f"apicurio/apicurio-registry:{pinned_version(REGISTRY_COORDINATE)}",
    }


@pytest.mark.parametrize("name", SERVICES)
def test_each_has_a_health_check_and_listens_on_this_machine_only(name: str) -> None:
    service = SERVICES[name]
    assert service["healthcheck"]["test"][0] in ("CMD", "CMD-SHELL")
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_settings_in_the_comment_use_the_published_ports() -> None:
    documented = dict(re.findall(r"export (ONCEWARD_\w+)=\S*localhost:(\d+)", TEXT))
    published = {name: re.findall(r"_PORT:-(\d+)", service["ports"][0])[0] for name, service in SERVICES.items()}
    assert documented == {
        "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS": published["kafka"],
        "ONCEWARD_DATABASE_URL": published["postgres"],
        "ONCEWARD_REGISTRY_URL": published["registry"],
    }


def test_every_volume_is_declared() -> None:
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert used == set(yaml.safe_load(TEXT)["volumes"])


def test_the_relay_can_stream_from_it() -> None:
    assert "wal_level=logical" in SERVICES["postgres"]["command"]
