"""How many examples property tests try: few and always the same in `make unit`, many with ONCEWARD_HYPOTHESIS=thorough."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def choose() -> None:
    """Make the profile that the environment asks for that of all tests that do not say otherwise."""
    settings.register_profile(
        "short", max_examples=25, stateful_step_count=30, derandomize=True, deadline=None, database=None
    )
    settings.register_profile(
        "thorough",
        max_examples=1_000,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.load_profile(os.environ.get("ONCEWARD_HYPOTHESIS", "short"))
