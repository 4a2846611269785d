"""Where nothing answers at an address that is only a default, the remedy is to set the variable."""

from __future__ import annotations

import psycopg
import pytest
from confluent_kafka import KafkaError

from onceward_runtime import kafka, postgres
from onceward_runtime.registry import registry_client
from onceward_runtime.settings import Settings
from onceward_schemas.errors import RegistryUnavailableError

SET_IT = '{} is not set. With the development stack: eval "$(onceward dev env)"'
REFUSED = 'connection failed: connection to server at "{}", port {} failed: Connection refused'


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ONCEWARD_DATABASE_URL", "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS", "ONCEWARD_REGISTRY_URL"):
        monkeypatch.delenv(name, raising=False)


def of_database(host: str = "127.0.0.1", port: int = 5432) -> str | None:
    found = postgres.database_error(psycopg.OperationalError(REFUSED.format(host, port)))
    assert found is not None
    return found.remedy


def of_kafka(where: str = "127.0.0.1:9092") -> str | None:
    error = KafkaError(KafkaError._TRANSPORT, f"{where}/bootstrap: Connect to ipv4#{where} failed: Connection refused")
    return kafka.broker_error(error).remedy


def of_registry(settings: Settings) -> str | None:
    with pytest.raises(RegistryUnavailableError) as caught:
        registry_client(settings).schema(1)
    return caught.value.remedy


def test_the_database(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_database() == SET_IT.format("ONCEWARD_DATABASE_URL")
    assert "Start the server" in str(of_database(port=5433))
    assert "Start the server" in str(of_database(host="10.0.0.1"))
    monkeypatch.setenv("ONCEWARD_DATABASE_URL", "postgresql://127.0.0.1:5432/mine")
    assert "Start the server" in str(of_database())


def test_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    assert of_kafka() == SET_IT.format("ONCEWARD_KAFKA_BOOTSTRAP_SERVERS")
    assert "Start the broker" in str(of_kafka("127.0.0.1:9093"))
    monkeypatch.setenv("ONCEWARD_KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:9092")
    assert "Start the broker" in str(of_kafka())


def test_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = Settings(registry_url="http://127.0.0.1:9")
    assert of_registry(nowhere) == "Check ONCEWARD_REGISTRY_URL, and that the registry runs."
    assert of_registry(Settings()) == SET_IT.format("ONCEWARD_REGISTRY_URL")
    monkeypatch.setenv("ONCEWARD_REGISTRY_URL", "http://127.0.0.1:8081")
    assert of_registry(Settings()) == "Check ONCEWARD_REGISTRY_URL, and that the registry runs."


def test_the_defaults_are_known_as_errors_write_them() -> None:
    settings = Settings()
    assert "127.0.0.1:5432" in settings.dsn
    assert settings.kafka_bootstrap_servers == "127.0.0.1:9092"
    assert settings.registry_url == "http://127.0.0.1:8081"
