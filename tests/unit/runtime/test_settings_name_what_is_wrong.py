"""A wrong variable is refused with its name and a remedy; docs/settings.md lists every one."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from onceward_runtime import settings, settings_page
from onceward_schemas.errors import SettingsError

PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("ONCEWARD_")]:
        monkeypatch.delenv(name)


def test_an_unknown_variable_is_refused_with_the_nearest_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_KAFKA_BOOTSTRAP_SERVER", "x:1")
    with pytest.raises(SettingsError) as caught:
        settings.load()
    assert "ONCEWARD_KAFKA_BOOTSTRAP_SERVER is not a setting" in caught.value.message
    assert caught.value.remedy == "Did you mean ONCEWARD_KAFKA_BOOTSTRAP_SERVERS?"


def test_the_prefix_alone_makes_no_name_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_XYZZY", "1")
    with pytest.raises(SettingsError) as caught:
        settings.load()
    assert "Did you mean" not in str(caught.value)


def test_a_malformed_value_names_its_variable_but_does_not_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_HTTP_PORT", "s3cret")
    with pytest.raises(SettingsError) as caught:
        settings.load()
    assert "ONCEWARD_HTTP_PORT" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("1.5", 1.5), ("PT2M", 120)])
def test_durations_are_seconds_or_iso_8601(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setenv("ONCEWARD_DRAIN_TIMEOUT", text)
    assert settings.load().drain_timeout == timedelta(seconds=seconds)


def test_a_negative_duration_is_refused() -> None:
    with pytest.raises(SettingsError, match="ONCEWARD_DRAIN_TIMEOUT"):
        settings.load(drain_timeout=-1)


def test_sasl_without_a_mechanism_is_refused() -> None:
    with pytest.raises(SettingsError, match="ONCEWARD_KAFKA_SASL_MECHANISM"):
        settings.load(kafka_security_protocol="SASL_SSL")


def test_a_certificate_without_its_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="ONCEWARD_KAFKA_SSL_KEY"):
        settings.load(kafka_ssl_certificate="/client.pem")


def test_secrets_do_not_show() -> None:
    given = settings.load(database_url="postgresql://u:s3cret@h/d", kafka_sasl_password="s3cret")
    assert "s3cret" not in repr(given)
    assert given.dsn == "postgresql://u:s3cret@h/d"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == settings_page.page(), "run: python -m onceward_runtime.settings_page > docs/settings.md"


@pytest.mark.parametrize("name", settings.Settings.model_fields)
def test_every_setting_says_its_default(name: str) -> None:
    assert re.search(r"Defaults to .+\.$", settings.Settings.model_fields[name].description or "")
