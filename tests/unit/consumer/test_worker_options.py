"""What a worker is told is checked before it starts."""

from __future__ import annotations

from datetime import timedelta

import pytest

from onceward_consumer.housekeeping import RETENTION
from onceward_consumer.worker import WorkerOptions
from onceward_schemas.errors import SettingsError


def test_a_worker_does_not_rely_on_more_than_housekeeping_keeps() -> None:
    assert WorkerOptions(reach=RETENTION).reach == RETENTION
    with pytest.raises(SettingsError, match="the ledger is kept for 30 days"):
        WorkerOptions(reach=RETENTION + timedelta(seconds=1))
