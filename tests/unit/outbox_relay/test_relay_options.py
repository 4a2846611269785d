"""What a relay is told is checked before it starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from onceward_outbox_relay.relay import RelayOptions
from onceward_schemas.errors import SettingsError


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("mode", "streaming", "Pass one of auto, stream, poll"),
        ("policy", None, "Pass one of"),
        ("grace", timedelta(0), "Pass more than zero"),
        ("slot_timeout", 10, "Pass a datetime.timedelta"),
        ("poll_interval", timedelta(seconds=-1), "Pass more than zero"),
        ("flush_seconds", -0.1, "from 0 to less than 60"),
        ("flush_seconds", "2", "from 0 to less than 60"),
    ],
)
def test_a_wrong_option_is_named_with_its_remedy(name: str, value: Any, remedy: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is .*{remedy}"):
        RelayOptions(**{name: value})
