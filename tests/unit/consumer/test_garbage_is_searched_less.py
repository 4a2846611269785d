"""A worker eases Python's garbage collector, and leaves alone one that the service has set up itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from onceward_consumer.garbage import search_less


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*before)


class Knot:
    def __init__(self) -> None:
        self.itself = self


def test_the_search_begins_later_and_still_finds_what_is_new() -> None:
    gc.set_threshold(700, 10, 10)
    search_less()
    assert gc.get_threshold() == (20_000, 10, 10)
    assert gc.get_freeze_count() > 1_000
    gone = weakref.ref(Knot())
    kept = [[] for _ in range(25_000)]  # type: ignore[var-annotated]
    assert gone() is None
    assert len(kept) == 25_000


def test_settings_of_the_service_stay() -> None:
    gc.set_threshold(5_000, 20, 20)
    frozen = gc.get_freeze_count()
    search_less()
    assert (gc.get_threshold(), gc.get_freeze_count()) == ((5_000, 20, 20), frozen)


def test_a_collector_that_is_off_stays_off() -> None:
    gc.set_threshold(700, 10, 10)
    gc.disable()
    search_less()
    assert not gc.isenabled()
    assert gc.get_threshold() == (700, 10, 10)
