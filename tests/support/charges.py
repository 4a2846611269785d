"""One valid command of every type, to be spoiled by tests."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from tests.support.commands import Channel, Charge, Payer


def charge(**changed: Any) -> Charge:
    """A charge that is valid but for what is changed."""
    whole: dict[str, Any] = {
        "order_id": UUID("018f2f8e-7b1a-7c3d-9e4f-0123456789ab"),
        "amount": Decimal("19.90"),
        "fee": Decimal("0.25"),
        "booked_at": datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC),
        "seen_at": datetime(2026, 3, 29, 1, 30, tzinfo=UTC),
        "due": date(2026, 4, 1),
        "opens": time(8),
        "closes": time(18, 30),
        "channel": Channel.CARD,
        "payer": Payer(name="Ada"),
    }
    return Charge(**whole | changed)
