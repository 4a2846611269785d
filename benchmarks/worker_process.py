"""One worker, measured from inside: `python -m benchmarks.worker_process HANDLER GROUP LANE COUNT [--threads N] [--group-size N]`.

From the first record in its buffer until COUNT records are finished, or until --seconds are over.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time

from benchmarks.charges import application
from onceward_consumer.worker import Worker, WorkerOptions
from onceward_runtime import settings


def cpu_seconds() -> float:
    """What this process has used."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    defaults = WorkerOptions()
    parser = argparse.ArgumentParser()
    parser.add_argument("handler")
    parser.add_argument("group")
    parser.add_argument("lane")
    parser.add_argument("count", type=int)
    parser.add_argument("--threads", type=int, default=defaults.threads)
    parser.add_argument("--group-size", type=int, default=defaults.group_size)
    parser.add_argument("--seconds", type=float, default=120.0)
    given = parser.parse_args()
    options = WorkerOptions(threads=given.threads, group_size=given.group_size)
    worker = Worker(application(given.handler, given.group, given.lane), settings.load(), options)
    worker.start()
    buffer = worker._buffer
    while not buffer.records and not buffer.finished:
        time.sleep(0.001)
    began, cpu = time.perf_counter(), cpu_seconds()
    while buffer.finished < given.count and time.perf_counter() - began < given.seconds:
        time.sleep(0.005)
    seconds, used, done = time.perf_counter() - began, cpu_seconds() - cpu, max(1, buffer.finished)
    worker.stop()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"per_s": done / seconds, "cpu_us": used / done * 1e6, "mb": peak}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
