"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from importlib.metadata import version

import confluent_kafka
import psycopg

from benchmarks.places import Place

_SYNCS = 200
_PACKAGES = ("confluent-kafka", "psycopg", "fastavro")


def facts(place: Place) -> list[str]:
    """One line each: cores and memory, disk, versions, durability."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    with psycopg.connect(place.dsn) as connection:

        def shown(name: str) -> str:
            row = connection.execute(f"show {name}").fetchone()
            return str(row[0]) if row else "?"

        postgres = f"PostgreSQL {shown('server_version')}, fsync {shown('fsync')}"
        postgres += f", synchronous_commit {shown('synchronous_commit')}, shared_buffers {shown('shared_buffers')}"
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    system = f"{platform.system()} {platform.release()}"
    return [
        f"{os.cpu_count()} cores ({_processor()}) for everything together, {memory:.0f} GiB of memory, {system}",
        f"an fdatasync of 8 KiB takes {_sync_microseconds():.0f} µs (median of {_SYNCS})",
        postgres,
        f"Kafka {place.kafka}, one broker, 4 partitions a topic, replication 1",
        f"Python {platform.python_version()}, {packages}, librdkafka {confluent_kafka.libversion()[0]}",
    ]


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _sync_microseconds() -> float:
    folder = "/var/tmp" if os.path.isdir("/var/tmp") else None
    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(_SYNCS):
            file.write(bytes(8192))
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6
