"""Two workers with one --instance: the broker lets only the later one be a member, and the former must not live on."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta
from typing import Any

from onceward_runtime.service import run_until_signal
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, eventually, idle_group
from tests.support.services import Services


def test_the_former_of_two_with_one_name_ends_with_its_reason(
    services: Services, database: str, topic_prefix: str
) -> None:
    group = idle_group(services, database, topic_prefix)
    options: dict[str, Any] = {"instance": "one", "session_timeout": timedelta(seconds=6)}
    former, later = group.worker(**options), group.worker(**options)
    over = threading.Event()
    seen: list[bool] = []

    def usurp() -> None:
        eventually(former.ready, "ready worker")
        later.start()
        eventually(lambda: later.ready() and former.ended, "end of the former")
        seen.append(former.alive())
        over.wait(10)

    usurper = threading.Thread(target=usurp)
    rescue = threading.Timer(40, os.kill, (os.getpid(), signal.SIGTERM))
    usurper.start()
    rescue.start()
    try:
        assert run_until_signal([former]) == 1, "it lived until the signal"
        over.set()
        usurper.join()
        assert seen == [False], "liveness says so before the process ends"
        assert "--instance" in str(former.error)
        with Forwarder(database, services.bootstrap):
            group.publish([Increment(counter="a")])
            eventually(lambda: group.states() == {"done": 1}, "work of the later")
    finally:
        rescue.cancel()
        over.set()
        usurper.join()
        later.stop()


def test_with_the_newer_protocol_it_is_the_later_that_ends(
    services: Services, database: str, topic_prefix: str
) -> None:
    group = idle_group(services, database, topic_prefix)
    options: dict[str, Any] = {"instance": "one", "protocol": "consumer"}
    with Forwarder(database, services.bootstrap), group.running(**options) as former:
        eventually(former.ready, "ready worker")
        with group.running(**options) as later:
            eventually(lambda: later.ended, "end of the later")
            assert "--instance" in str(later.error)
        group.publish([Increment(counter="a")])
        eventually(lambda: group.states() == {"done": 1}, "work of the former")
        assert former.ready()
