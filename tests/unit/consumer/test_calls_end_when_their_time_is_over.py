"""Many calls share one timer, and each ends when its own time is over, unless it ends before."""

from __future__ import annotations

import asyncio
import time

import pytest

from onceward_consumer.deadlines import ExpiredError, within


async def sleep(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


def test_those_that_are_too_slow_are_cancelled_and_the_others_are_not() -> None:
    async def main() -> list[object]:
        times = [0.01, 30.0, 0.02, 40.0]
        return list(await asyncio.gather(*(within(0.1, sleep, each) for each in times), return_exceptions=True))

    began = time.monotonic()
    found = asyncio.run(main())
    assert time.monotonic() - began < 5
    assert [type(each) if isinstance(each, BaseException) else each for each in found] == [
        0.01,
        ExpiredError,
        0.02,
        ExpiredError,
    ]


def test_a_cancellation_by_somebody_else_stays_one() -> None:
    async def main() -> bool:
        task = asyncio.create_task(within(30, sleep, 20))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(main())


def test_one_that_will_not_be_cancelled_keeps_its_result_and_its_task() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "done"

    async def main() -> tuple[str, int]:
        found = await within(0.01, stubborn)
        task = asyncio.current_task()
        assert task is not None
        return found, task.cancelling()

    assert asyncio.run(main()) == ("done", 0)


def test_a_timeout_of_the_call_itself_is_not_the_end_of_its_time() -> None:
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(30)

    async def main() -> None:
        await within(30, impatient)

    with pytest.raises(TimeoutError) as raised:
        asyncio.run(main())
    assert not isinstance(raised.value, ExpiredError)


def test_a_loop_that_is_gone_leaves_nothing_behind_for_the_next() -> None:
    for _ in range(2):
        with pytest.raises(ExpiredError):
            asyncio.run(within(0.01, sleep, 30))
