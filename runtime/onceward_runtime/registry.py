"""The schema registry that the settings name."""

from __future__ import annotations

from onceward_runtime.settings import Settings, remedy_if_unset
from onceward_schemas.registry import RegistryClient


def registry_client(settings: Settings) -> RegistryClient:
    """Return a client; it connects when first used. Raises: SettingsError."""
    password = settings.registry_password
    more = {"away_remedy": unset} if (unset := remedy_if_unset("registry_url", settings.registry_url)) else {}
    return RegistryClient(
        settings.registry_url,
        user=settings.registry_user,
        password=password.get_secret_value() if password is not None else None,
        timeout_seconds=settings.registry_timeout.total_seconds(),
        ca_location=str(settings.registry_ssl_ca) if settings.registry_ssl_ca is not None else None,
        **more,
    )
