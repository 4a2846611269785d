"""A failure names the place in the service's own code where it arose, through wrappers, groups and libraries."""

from __future__ import annotations

import asyncio
import json
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import CodeType, FunctionType
from typing import Any

import pytest

from onceward_consumer.handlers import Handler, call_within
from onceward_consumer.origins import origin
from onceward_consumer.outcomes import Dead
from onceward_consumer.policy import never
from onceward_consumer.redaction import LONGEST
from tests.support.commands import Increment


def raised(function: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        function()
    return caught.value


def made_in(path: str, module: str, body: str) -> Callable[..., Any]:
    """A function `charge` as if it were in a file of that path."""
    code: CodeType = compile(f"def charge(call=None):\n    {body}\n", path, "exec")
    inner = next(each for each in code.co_consts if isinstance(each, CodeType))
    function = FunctionType(inner, {"__name__": module}, argdefs=(None,))
    return function


charge = made_in("/srv/app/service.py", "app.service", "raise KeyError('nope')")
INSTALLED = f"{sysconfig.get_path('purelib')}/shop/service.py"


def test_the_innermost_frame_is_named() -> None:
    assert origin(raised(charge)) == "service.py:2 in charge"


def test_frames_of_the_standard_library_and_of_packages_are_not() -> None:
    parse = made_in("/srv/app/service.py", "app.service", "import json; json.loads('{')")
    assert origin(raised(parse)) == "service.py:2 in charge"
    library = made_in(INSTALLED, "shop.service", "raise OSError")
    call = made_in("/srv/app/service.py", "app.service", "call()")
    assert origin(raised(lambda: call(library)), call) == "service.py:2 in charge"


def test_an_installed_service_finds_its_own_package() -> None:
    installed = made_in(INSTALLED, "shop.service", "raise OSError")
    assert origin(raised(installed), installed) == "service.py:2 in charge"


def test_a_wrapper_without_a_place_has_that_of_its_cause() -> None:
    error = RuntimeError("escaped")
    error.__cause__ = raised(charge)
    assert origin(error) == "service.py:2 in charge"


def test_a_group_has_the_place_of_a_member() -> None:
    assert origin(BaseExceptionGroup("two", [ValueError(), raised(charge)])) == "service.py:2 in charge"


def test_what_came_through_no_code_of_the_service_has_none() -> None:
    assert origin(ValueError()) is None
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    caught.value.__traceback__ = caught.value.__traceback__.tb_next  # type: ignore[union-attr]  # without this file
    assert origin(caught.value) is None


def test_a_call_that_was_ended_says_where_it_waited() -> None:
    async def wait(command: Any, context: Any) -> None:
        await asyncio.sleep(60)

    handler = Handler(
        command=Increment, function=wait, lane="l", is_async=True, retry=never, max_runtime=timedelta(milliseconds=10)
    )
    with ThreadPoolExecutor(1) as pool:  # as in a worker, where nothing of the service's own calls the engine
        error = pool.submit(asyncio.run, call_within(handler, None, None)).exception()
    assert error is not None
    line = wait.__code__.co_firstlineno + 1
    assert origin(error, wait) == f"test_failures_say_where.py:{line} in wait"


def test_a_deep_recursion_is_read_to_its_end() -> None:
    def dive(depth: int) -> None:
        if depth == 0:
            raise ValueError
        dive(depth - 1)

    error = raised(lambda: dive(sys.getrecursionlimit() // 3))
    assert origin(error) == f"test_failures_say_where.py:{dive.__code__.co_firstlineno + 2} in dive"


def test_the_stored_text_ends_with_the_place() -> None:
    assert (
        Dead("key_error", "KeyError: 'nope'", "service.py:2 in charge").text
        == "KeyError: 'nope' (service.py:2 in charge)"
    )
    assert Dead("type_mismatch", "Another type.").text == "Another type."
    long = Dead("key_error", "x" * LONGEST, "service.py:2 in charge").text
    assert len(long) == LONGEST
    assert long.endswith("x… (service.py:2 in charge)")
