"""How lanes share a worker is declared once, checked at once, and refused where it cannot be meant."""

from __future__ import annotations

from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.turns import LaneRules
from onceward_schemas.errors import AppError
from tests.support.commands import Increment, Settle


def app_with_handlers() -> App:
    app = App("shop")

    @app.handler(Increment, lane="shop.bulk")
    def increment(command: Increment, ctx: Any) -> None: ...

    @app.handler(Settle, lane="shop.urgent")
    def settle(command: Settle, ctx: Any) -> None: ...

    return app


def test_lanes_that_are_not_declared_share_alike() -> None:
    app = app_with_handlers()
    app.lane("shop.urgent", weight=4, reserved=1)
    app.require_lanes()
    assert app.lane_rules == {"shop.bulk": LaneRules(), "shop.urgent": LaneRules(weight=4, reserved=1)}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weight": 0}, r"weight is 0.*from 1 to 1000"),
        ({"weight": True}, r"weight is True.*from 1 to 1000"),
        ({"weight": 1.5}, r"weight is 1.5.*from 1 to 1000"),
        ({"reserved": -1}, r"reserved is -1.*from 0 to 100"),
        ({"reserved": "1"}, r"reserved is '1'.*from 0 to 100"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(AppError, match=rf"(?s)shop.urgent.*{says}"):
        app_with_handlers().lane("shop.urgent", **options)


def test_a_lane_is_declared_once() -> None:
    app = app_with_handlers()
    app.lane("shop.urgent", weight=2)
    with pytest.raises(AppError, match="declared twice"):
        app.lane("shop.urgent", weight=3)
    assert app.lane_rules["shop.urgent"] == LaneRules(weight=2)


def test_a_lane_without_a_handler_is_refused_with_the_nearest() -> None:
    app = app_with_handlers()
    app.lane("shop.urgnet", reserved=1)
    with pytest.raises(AppError, match=r"(?s)shop.urgnet.*Did you mean 'shop.urgent'"):
        app.require_lanes()


def test_a_name_that_kafka_refuses_is_refused() -> None:
    with pytest.raises(AppError, match="Kafka refuses"):
        app_with_handlers().lane("shop urgent")
