"""A worker process to be killed, frozen and cut off: `python -m tests.chaos.worker STAGE`.

Its time-outs are short, so that a freeze of FROZEN_SECONDS is longer than all of them.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from datetime import timedelta
from typing import Any, Final

from onceward_consumer.worker import Worker, WorkerOptions
from onceward_runtime import log, settings
from onceward_runtime.service import run_until_signal
from onceward_schemas.errors import OncewardError
from tests.chaos.handlers import MODES, application
from tests.chaos.plan import Stage

LEASE_SECONDS: Final = 5.0
SESSION_SECONDS: Final = 6.0
TRANSACTION_SECONDS: Final = 5.0
FROZEN_SECONDS: Final = 15.0


def options(stage: Stage) -> WorkerOptions:
    """How the workers of a trial run."""
    chosen: dict[str, Any] = {"threads": 2, "tasks": 2} | dict(MODES[stage.plan.mode].options)
    return WorkerOptions(
        lease=timedelta(seconds=LEASE_SECONDS),
        session_timeout=timedelta(seconds=SESSION_SECONDS),
        transaction_timeout=timedelta(seconds=TRANSACTION_SECONDS),
        idle_timeout=timedelta(seconds=TRANSACTION_SECONDS),
        **chosen,
    )


def main() -> int:
    faulthandler.register(signal.SIGUSR1)
    stage = Stage.from_text(sys.argv[1])
    os.environ["CHAOS_STAGE"] = stage.to_text()  # for child processes, see cell_app
    cells = "tests.chaos.cell_app:app" if MODES[stage.plan.mode].cells else None
    found = settings.load()
    log.configure(found)
    try:
        return run_until_signal([Worker(application(stage), found, options(stage), cells=cells)])
    except OncewardError as error:  # a server is away while it starts; it is started again
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
