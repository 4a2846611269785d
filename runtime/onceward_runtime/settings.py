"""The settings of every process; the one place that reads the environment (`ONCEWARD_*`)."""

from __future__ import annotations

import difflib
import os
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from onceward_schemas.errors import SettingsError

_PREFIX = "ONCEWARD_"
_TOOLING = ("ONCEWARD_TEST_", "ONCEWARD_DEV_", "ONCEWARD_DEMO_", "ONCEWARD_BENCH_")
"""Prefixes that belong to the project's own tools, which read them themselves."""

_DEFAULT_ADDRESSES = {
    "database_url": ("127.0.0.1", "port 5432"),
    "kafka_bootstrap_servers": ("127.0.0.1:9092",),
    "registry_url": ("//127.0.0.1:8081",),
}
"""How errors of the client libraries write the default addresses below."""


def _seconds(value: Any) -> Any:
    """Variables hold a plain number of seconds, or ISO 8601."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


Duration = Annotated[timedelta, BeforeValidator(_seconds), Field(ge=timedelta(0))]


class Settings(BaseSettings):
    """Where the services are and how long to wait for them. Built by `load`, or in code with keywords."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True, use_attribute_docstrings=True
    )

    database_url: SecretStr = SecretStr("postgresql://postgres@127.0.0.1:5432/postgres")
    """PostgreSQL, as a libpq URL or keyword string. Defaults to the local server."""

    kafka_bootstrap_servers: str = "127.0.0.1:9092"
    """Comma-separated host:port list. Defaults to the local broker."""

    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """Defaults to PLAINTEXT."""

    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """Needed with SASL_PLAINTEXT and SASL_SSL. Defaults to none."""

    kafka_sasl_username: str | None = None
    """Defaults to none."""

    kafka_sasl_password: SecretStr | None = None
    """Defaults to none."""

    kafka_ssl_ca: Path | None = None
    """PEM file of the certificate authority. Defaults to the system's."""

    kafka_ssl_certificate: Path | None = None
    """PEM file of the client's certificate. Defaults to none."""

    kafka_ssl_key: Path | None = None
    """PEM file of the client's key. Defaults to none."""

    kafka_ssl_key_password: SecretStr | None = None
    """Defaults to none."""

    kafka_group_protocol: Literal["classic", "consumer"] = "classic"
    """How workers agree on who has which partition; `consumer` (KIP-848) from Kafka 4.0 on, the same for all workers of an app.
    Defaults to classic."""

    registry_url: str = "http://127.0.0.1:8081"
    """A Confluent-compatible schema registry. Defaults to the local one."""

    registry_user: str | None = None
    """Basic authentication. Defaults to none."""

    registry_password: SecretStr | None = None
    """Defaults to none."""

    registry_ssl_ca: Path | None = None
    """PEM file of the certificate authority. Defaults to the system's."""

    registry_timeout: Duration = timedelta(seconds=5)
    """How long one request to the registry may take. Defaults to 5 s."""

    slot: str = Field(default="onceward", pattern=r"^[a-z0-9_]{1,63}$")
    """The relay's replication slot. Defaults to `onceward`."""

    publication: str = Field(default="onceward", pattern=r"^[a-z0-9_]{1,63}$")
    """The relay's publication. Defaults to `onceward`."""

    http_host: str = "127.0.0.1"
    """Where a process serves metrics and health. Defaults to 127.0.0.1."""

    http_port: int | None = Field(default=None, ge=0, le=65535)
    """Port of metrics and health; 0 takes a free one. Defaults to none: not served."""

    code_version: str | None = None
    """What a worker says of its code, for instance a release or commit; kept with its dead letters. Defaults to none."""

    drain_timeout: Duration = timedelta(seconds=25)
    """How long a process may take to finish its work after SIGTERM. Defaults to 25 s."""

    log_format: Literal["console", "json"] = "console"
    """Defaults to console."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Defaults to info."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.kafka_security_protocol.startswith("SASL_") and self.kafka_sasl_mechanism is None:
            raise SettingsError(
                f"ONCEWARD_KAFKA_SECURITY_PROTOCOL is {self.kafka_security_protocol}, but no mechanism is given.",
                remedy="Set ONCEWARD_KAFKA_SASL_MECHANISM, for instance to SCRAM-SHA-512.",
            )
        if (self.kafka_ssl_certificate is None) != (self.kafka_ssl_key is None):
            raise SettingsError(
                "A client's certificate and its key go together; one of them is not given.",
                remedy="Set both ONCEWARD_KAFKA_SSL_CERTIFICATE and ONCEWARD_KAFKA_SSL_KEY, or neither.",
            )
        return self

    def kafka(self, **more: Any) -> dict[str, Any]:
        """The librdkafka configuration that reaches the cluster, with `more` on top."""
        given = {
            "bootstrap.servers": self.kafka_bootstrap_servers,
            "security.protocol": self.kafka_security_protocol,
            "sasl.mechanism": self.kafka_sasl_mechanism,
            "sasl.username": self.kafka_sasl_username,
            "sasl.password": _revealed(self.kafka_sasl_password),
            "ssl.ca.location": self.kafka_ssl_ca and str(self.kafka_ssl_ca),
            "ssl.certificate.location": self.kafka_ssl_certificate and str(self.kafka_ssl_certificate),
            "ssl.key.location": self.kafka_ssl_key and str(self.kafka_ssl_key),
            "ssl.key.password": _revealed(self.kafka_ssl_key_password),
        }
        return {name: value for name, value in given.items() if value is not None} | more

    @property
    def dsn(self) -> str:
        """The database's address, secrets included: for libpq, never for a log."""
        return self.database_url.get_secret_value()


def remedy_if_unset(field: str, said: str) -> str | None:
    """What to do when nothing answers at an address that is only a default; None where `said` names another, or it is set.

    `said` is the error, with the address in it.
    """
    variable = _PREFIX + field.upper()
    if os.environ.get(variable) or not all(part in said for part in _DEFAULT_ADDRESSES[field]):
        return None
    return f'{variable} is not set. With the development stack: eval "$(onceward dev env)"'


def _revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None


def load(**overrides: Any) -> Settings:
    """Read the settings from the environment, `overrides` first.

    Raises: SettingsError naming the variable, for unknown ones with the nearest known name.
    """
    known = {_PREFIX + name.upper() for name in Settings.model_fields}
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in known and not name.startswith(_TOOLING):
            nearest = difflib.get_close_matches(
                name.removeprefix(_PREFIX), [k.removeprefix(_PREFIX) for k in known], n=1
            )
            hint = f"Did you mean {_PREFIX}{nearest[0]}?" if nearest else "Unset it; docs/settings.md lists the names."
            raise SettingsError(f"{name} is not a setting.", remedy=hint)
    try:
        return Settings(**overrides)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = _PREFIX + str(first["loc"][0]).upper() if first["loc"] else "The settings"
        raise SettingsError(f"{where}: {first['msg']}.", remedy="Correct the variable and start again.") from None
