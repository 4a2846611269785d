"""What one worker lets begin: never more than it has leased, nothing once a lease is over, and nothing towards a bad destination."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onceward_consumer.breakers import Breaker, Circuit
from onceward_consumer.deliveries import Delivery
from onceward_consumer.limiter import Limiter
from onceward_consumer.limits import declared_limits, rules
from onceward_consumer.outcomes import Done
from onceward_consumer.pools import Answer
from tests.support.limited_worker import app_of, delivery

OFF = {"destination:smtp": {"breaker": None}}
SMTP = "destination:smtp"
TYPE = "type:test.Increment"


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A limiter, and PostgreSQL's part as a test says it."""

    def __init__(self, **limits: Any) -> None:
        self.clock = Clock()
        self.app = app_of("g", OFF | {name.replace("_", ":", 1): each for name, each in limits.items()})
        self.limiter = Limiter("me", self.clock)
        self.limiter.configure(rules(declared_limits(self.app.limits, self.app.handlers.values()), {}))

    def lease(self, scope: str, permits: int = 0, tokens: int = 0, *, seconds: float = 10.0, **circuit: Any) -> None:
        answer = Answer(scope, permits, tokens, 0.0, Circuit(**circuit), 0)
        self.limiter.answers([answer], self.clock.now, 5000.0, seconds)

    def one(self, key: str = "a", tenant: str | None = None) -> Delivery:
        return delivery(self.app, key, tenant=tenant)

    def admit(self, *deliveries: Delivery) -> list[str | None]:
        self.limiter.begin("external test.Increment")
        return [self.limiter.admit(each) for each in deliveries]


def item(of: Delivery, started: float = 0.0) -> Any:
    return SimpleNamespace(delivery=of, started=started)


def test_no_more_begin_than_were_leased_and_each_comes_back() -> None:
    desk = Desk(destination_smtp={"concurrency": 9, "breaker": None})
    first, second, third = (desk.one(key) for key in "abc")
    assert desk.admit(first) == [SMTP], "nothing is leased yet"
    desk.lease(SMTP, 2)
    assert desk.admit(first, second, third) == [None, None, SMTP]
    desk.limiter.leave([first])
    desk.limiter.leave([first])
    assert desk.limiter.freed() == ({SMTP}, False), "who waits is asked again"
    assert desk.admit(third, desk.one("d")) == [None, SMTP]


def test_nothing_begins_once_the_lease_is_over() -> None:
    desk = Desk(destination_smtp={"concurrency": 9, "breaker": None})
    desk.lease(SMTP, 5, seconds=3.0)
    begun = desk.one()
    assert desk.admit(begun) == [None]
    assert desk.limiter.may_call(begun)
    desk.clock.now += 3.0
    assert desk.admit(desk.one()) == [SMTP]
    assert not desk.limiter.may_call(begun), "claimed, and not called"


def test_a_token_is_used_once_and_void_after_half_a_second() -> None:
    desk = Desk(**{"type_test.Increment": {"rate": "10/s"}})
    desk.lease(TYPE, tokens=2)
    one, two, three = desk.one(), desk.one(), desk.one()
    assert desk.admit(one, two, three) == [None, None, TYPE]
    desk.limiter.unused([item(one), item(two, started=1.0)])
    desk.limiter.leave([one, two])
    assert desk.admit(three, desk.one()) == [None, TYPE], "what was not called has left its token to the next"
    desk.lease(TYPE, tokens=2)
    late = desk.one()
    assert desk.admit(late) == [None]
    desk.clock.now += 0.5
    assert not desk.limiter.may_call(late)
    assert desk.admit(desk.one()) == [TYPE]


def test_what_two_limits_hold_back_takes_nothing_of_either() -> None:
    desk = Desk(**{"type_test.Increment": {"rate": "10/s"}, "lane_lane": {"concurrency": 1}})
    desk.lease("lane:lane", 1)
    assert desk.admit(desk.one()) == [TYPE]
    desk.lease(TYPE, tokens=1)
    assert desk.admit(desk.one()) == [None], "the permit was not taken by the one that had no token"


def test_a_tenant_has_its_own_room() -> None:
    desk = Desk(**{"tenant_*": {"concurrency": 1}})
    assert desk.admit(desk.one(tenant="a"), desk.one(tenant="b"), desk.one()) == ["tenant:a", "tenant:b", None]
    desk.lease("tenant:a", 1)
    assert desk.admit(desk.one(tenant="a"), desk.one(tenant="b")) == [None, "tenant:b"]
    assert desk.limiter.reason("tenant:b") == "over_quota"


def test_behind_a_follower_that_may_not_run_none_of_its_key_does() -> None:
    desk = Desk(destination_smtp={"concurrency": 9, "breaker": None})
    desk.lease(SMTP, 1)
    followers = [desk.one("a"), desk.one("b"), desk.one("b")]
    assert desk.limiter.admit_all(followers) == [True, False, False]
    desk.limiter.leave(followers[:1])
    assert desk.limiter.freed() == ({SMTP}, True), "parked followers are looked at again"


def test_failures_stop_calls_at_once_though_nobody_else_knows_yet() -> None:
    desk = Desk(destination_smtp={"breaker": Breaker(failures=3)})
    desk.lease(SMTP)
    begun = [desk.one(str(n)) for n in range(5)]
    assert desk.admit(*begun) == [None] * 5
    for each in begun[:3]:
        assert desk.limiter.may_call(each)
        desk.limiter.called(each, next(iter(desk.app.handlers.values())), ConnectionError())
    assert [desk.limiter.may_call(each) for each in begun[3:]] == [False, False], "claimed, and handed back uncalled"
    assert desk.admit(desk.one("x")) == [SMTP]
    [ask] = desk.limiter.asks()
    assert ask.tally is not None
    assert (ask.tally.calls, ask.tally.in_a_row) == (3, 3)


def test_a_failed_exchange_is_told_again() -> None:
    desk = Desk(destination_smtp={"breaker": Breaker(failures=30)})
    desk.lease(SMTP)
    handler = next(iter(desk.app.handlers.values()))
    for error in (ConnectionError(), None, ConnectionError(), ConnectionError()):
        desk.limiter.called(desk.one(), handler, error or Done())
    asks = desk.limiter.asks()
    desk.limiter.called(desk.one(), handler, ConnectionError())
    desk.limiter.failed(asks)
    [ask] = desk.limiter.asks()
    assert ask.tally is not None
    assert (ask.tally.calls, ask.tally.failed, ask.tally.in_a_row) == (5, 4, 3)


def test_one_command_probes_and_another_may_where_it_was_not_called() -> None:
    desk = Desk(destination_smtp={"breaker": Breaker()})
    desk.lease(SMTP, phase="open", until=5001.0)
    waiting = [desk.one("a"), desk.one("b")]
    assert desk.admit(*waiting) == [SMTP, SMTP]
    assert all(not ask.probe for ask in desk.limiter.asks()), "it is not time yet"
    desk.clock.now += 2.0
    [ask] = desk.limiter.asks()
    assert ask.probe
    desk.lease(SMTP, phase="half_open", prober="me")
    assert desk.admit(*waiting) == [None, SMTP]
    assert desk.limiter.may_call(waiting[0])
    desk.limiter.leave(waiting[:1])
    assert desk.admit(waiting[1]) == [None]
    desk.limiter.called(waiting[1], next(iter(desk.app.handlers.values())), Done())
    [ask] = desk.limiter.asks()
    assert ask.tally is not None
    assert ask.tally.probe == "good"
    desk.lease(SMTP, phase="half_open", prober="another")
    assert desk.admit(desk.one("c")) == [SMTP]


@given(st.lists(st.tuples(st.sampled_from(["admit", "leave", "lease", "wait"]), st.integers(0, 4)), max_size=60))
def test_what_is_in_use_never_exceeds_what_is_leased(steps: list[tuple[str, int]]) -> None:
    desk = Desk(destination_smtp={"concurrency": 4, "breaker": None})
    running: list[Delivery] = []
    leased, valid_until = 0, 0.0
    for step, number in steps:
        match step:
            case "admit":
                one = desk.one(str(number))
                if desk.admit(one) == [None]:
                    running.append(one)
                    assert len(running) <= min(leased, 4)
                    assert desk.clock.now < valid_until
            case "leave" if running:
                desk.limiter.leave([running.pop(number % len(running))])
            case "lease":
                leased, valid_until = number, desk.clock.now + 2.0
                desk.lease(SMTP, number, seconds=2.0)
            case "wait":
                desk.clock.now += number / 2
    assert {seen.scope: seen.in_use for seen in desk.limiter.look()}.get(SMTP, 0) == len(running)
