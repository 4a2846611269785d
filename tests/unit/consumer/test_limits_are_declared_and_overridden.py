"""What an app declares, what an operator sets over it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from onceward_consumer.app import App
from onceward_consumer.breakers import Breaker
from onceward_consumer.limits import Limit, Override, declared_limits, rate, rules
from onceward_schemas.errors import AppError
from tests.support.limited_worker import app_of

TEN = Limit(concurrency=10, rate=rate("10/s"))


def test_a_destination_has_a_breaker_unless_it_says_otherwise() -> None:
    def of(**limits: dict[str, Any]) -> Limit:
        app = app_of("g", {f"destination:{name}": rules for name, rules in limits.items()})
        return declared_limits(app.limits, app.handlers.values())["destination:smtp"]

    assert of().breaker == Breaker()
    assert of(smtp={"concurrency": 3}) == Limit(concurrency=3, breaker=Breaker())
    assert of(smtp={"breaker": Breaker(failures=9)}).breaker == Breaker(failures=9)
    assert of(smtp={"breaker": None}).idle


def test_what_an_operator_sets_goes_before_what_is_declared() -> None:
    declared = {"lane:a": TEN}
    assert rules(declared, {"lane:a": Override(concurrency=2)}).of("lane:a") == Limit(concurrency=2, rate=rate("10/s"))
    assert rules(declared, {"lane:a": Override(rate="off")}).of("lane:a") == Limit(concurrency=10)
    assert rules(declared, {"lane:a": Override(concurrency=-1, rate="off")}).of("lane:a").idle
    assert rules(declared, {"lane:a": Override(paused=True)}).of("lane:a").paused
    assert rules(declared, {}).of("lane:b").idle


def test_a_tenant_has_its_own_limit_or_that_of_all() -> None:
    declared = {"tenant:*": Limit(concurrency=5), "tenant:big": Limit(concurrency=50)}
    found = rules(declared, {"tenant:loud": Override(paused=True), "tenant:free": Override(concurrency=-1)})
    assert found.of("tenant:any").concurrency == 5
    assert found.of("tenant:big").concurrency == 50
    assert found.of("tenant:loud") == Limit(concurrency=5, paused=True)
    assert found.of("tenant:free").idle
    changed = rules(declared, {"tenant:*": Override(concurrency=2), "tenant:loud": Override(rate="1/s")})
    assert changed.of("tenant:any").concurrency == 2
    assert changed.of("tenant:loud") == Limit(concurrency=2, rate=rate("1/s"))
    assert changed.of("tenant:big").concurrency == 50


@pytest.mark.parametrize(
    ("scope", "given", "said"),
    [
        ("smtp", {"concurrency": 1}, "names no limit"),
        ("destnation:smtp", {"concurrency": 1}, "Did you mean destination:smtp"),
        ("type:", {"concurrency": 1}, "names no limit"),
        ("lane:a", {}, "not limited by anything"),
        ("lane:a", {"concurrency": -1}, "concurrency is -1"),
        ("lane:a", {"concurrency": True}, "concurrency is True"),
        ("lane:a", {"rate": "fast"}, "rate is 'fast'"),
        ("lane:a", {"rate": "0/s"}, "rate is '0/s'"),
        ("lane:a", {"rate": "1/0s"}, "rate is '1/0s'"),
        ("lane:a", {"rate": "1/2d"}, "a day at most"),
        ("lane:a", {"concurrency": 1, "breaker": None}, "cannot have a breaker"),
        ("destination:smtp", {"breaker": 5}, "breaker is 5"),
    ],
)
def test_wrong_limits_are_named(scope: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(AppError, match=said):
        App("g").limit(scope, **given)


def test_one_scope_is_limited_once() -> None:
    app = App("g")
    app.limit("lane:a", concurrency=1)
    with pytest.raises(AppError, match="limited twice"):
        app.limit("lane:a", rate="1/s")


def test_a_limit_for_nobody_is_found_at_start() -> None:
    app = app_of("g", {"destination:stmp": {"concurrency": 1}})
    with pytest.raises(AppError, match="Did you mean destination:smtp"):
        declared_limits(app.limits, app.handlers.values())


@pytest.mark.parametrize("text", ["600/m", "10/s", "100/10s", "1/h", "5/d", "1/500ms"])
def test_a_rate_is_written_as_it_is_read(text: str) -> None:
    assert str(rate(text)) == text
