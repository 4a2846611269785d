"""What a worker is told is checked before it starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from onceward_consumer.housekeeping import RETENTION
from onceward_consumer.worker import WorkerOptions
from onceward_schemas.errors import SettingsError


def test_a_worker_does_not_rely_on_more_than_housekeeping_keeps() -> None:
    assert WorkerOptions(reach=RETENTION).reach == RETENTION
    with pytest.raises(SettingsError, match="the ledger is kept for 30 days"):
        WorkerOptions(reach=RETENTION + timedelta(seconds=1))


@pytest.mark.parametrize("name", ["threads", "tasks", "group_size", "buffered_records", "buffered_bytes"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "4", None])
def test_numbers_are_whole_and_at_least_one(name: str, value: Any) -> None:
    one: dict[str, Any] = {name: 1}
    assert getattr(WorkerOptions(**one), name) == 1
    with pytest.raises(SettingsError, match=f"{name} is .*Pass a whole number from 1 on"):
        WorkerOptions(**{name: value})


@pytest.mark.parametrize(
    "name", ["lease", "reach", "lock_timeout", "transaction_timeout", "idle_timeout", "session_timeout"]
)
@pytest.mark.parametrize("value", [timedelta(0), timedelta(seconds=-1), 5, None])
def test_durations_are_above_zero(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"{name} is "):
        WorkerOptions(**{name: value})


def test_a_lease_is_long_enough_to_be_renewed_in_time() -> None:
    assert WorkerOptions(lease=timedelta(seconds=4)).lease == timedelta(seconds=4)
    with pytest.raises(SettingsError, match=r"lease is 3.9 s.*Pass 4 s or more"):
        WorkerOptions(lease=timedelta(seconds=3.9))


def test_a_name_for_static_membership_is_not_empty() -> None:
    with pytest.raises(SettingsError, match="instance is empty"):
        WorkerOptions(instance="")
