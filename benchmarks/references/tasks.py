"""What an event loop allows: a task for each key that only waits. `python -m benchmarks.references.tasks COUNT KEYS SECONDS`"""

from __future__ import annotations

import asyncio
import json
import sys
import time


async def key(count: int, seconds: float) -> None:
    """The calls of one key, one after the other."""
    for _ in range(count):
        await asyncio.sleep(seconds)


async def main(count: int, keys: int, seconds: float) -> None:
    began = time.perf_counter()
    await asyncio.gather(*(key(count // keys, seconds) for _ in range(keys)))
    print(json.dumps({"per_s": count / (time.perf_counter() - began)}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
