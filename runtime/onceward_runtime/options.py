"""Checks on the options of services, made when they are built: each error names the option and says what to pass."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from onceward_schemas.errors import SettingsError


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is not a whole number from `least` on.

    Raises: SettingsError.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SettingsError(f"{name} is {value!r:.40}.", remedy=f"Pass a whole number from {least} on.")


def check_duration(name: str, value: Any, least: timedelta | None = None) -> None:
    """Refuse what is not a timedelta above zero, or not at least `least`.

    Raises: SettingsError.
    """
    if not isinstance(value, timedelta):
        raise SettingsError(f"{name} is {value!r:.40}.", remedy="Pass a datetime.timedelta.")
    if value <= timedelta(0) or (least is not None and value < least):
        wanted = "more than zero" if least is None else f"{least.total_seconds():g} s or more"
        raise SettingsError(f"{name} is {value.total_seconds():g} s.", remedy=f"Pass {wanted}.")


def check_one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    """Refuse a word that is not among those allowed.

    Raises: SettingsError.
    """
    words = list(allowed)
    if value not in words:
        raise SettingsError(f"{name} is {value!r:.40}.", remedy=f"Pass one of {', '.join(words)}.")
