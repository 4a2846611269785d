"""ONCEWARD_TEST_SERVICES decides where tests run; a choice that cannot work ends the run with a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.services import MODE_VARIABLE, ROOT, Services

PROBE = "tests/integration/devstack/test_fixtures_serve_every_test.py"
ADDRESSES = ("ONCEWARD_KAFKA_BOOTSTRAP_SERVERS", "ONCEWARD_REGISTRY_URL", "ONCEWARD_DATABASE_URL")


def run_tests(mode: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ADDRESSES}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", PROBE],
        cwd=ROOT,
        env=environment | {MODE_VARIABLE: mode} | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_given_addresses_are_used(services: Services) -> None:
    values = (services.bootstrap, services.registry_url, services.dsn)
    done = run_tests("given", **dict(zip(ADDRESSES, values, strict=True)))
    assert done.returncode == 0, done.stdout + done.stderr


def test_given_without_addresses_names_them() -> None:
    done = run_tests("given", ONCEWARD_DATABASE_URL="postgresql://127.0.0.1/x")
    assert done.returncode == 4
    assert "needs ONCEWARD_KAFKA_BOOTSTRAP_SERVERS, ONCEWARD_REGISTRY_URL too" in done.stdout + done.stderr


def test_an_unknown_choice_is_refused() -> None:
    done = run_tests("cloud")
    assert done.returncode == 4
    assert "choose one of embedded, given, testcontainers" in done.stdout + done.stderr


def test_containers_without_docker_are_refused(tmp_path: Path) -> None:
    done = run_tests("testcontainers", PATH=str(tmp_path))
    assert done.returncode == 4
    assert "there is no docker program" in done.stdout + done.stderr
