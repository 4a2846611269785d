"""Publishes one command a transaction at a steady rate: `python -m benchmarks.pace RATE SECONDS`.

Its only output is a list: when commit() was called, for each job. The key is the job's number.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace

import psycopg

from benchmarks.charges import charge, codec
from onceward_producer.outbox import Outbox
from onceward_runtime import settings


def main() -> None:
    rate, count = float(sys.argv[1]), int(float(sys.argv[1]) * float(sys.argv[2]))
    outbox = Outbox(codec())
    committed = []
    with psycopg.connect(settings.load().dsn) as connection:
        due = time.time()
        for job in range(count):
            time.sleep(max(0.0, due - time.time()))
            outbox.publish(connection, replace(charge(job, 1), account=str(job)), tenant="acme-42")
            committed.append(time.time())
            connection.commit()
            due += 1 / rate
    print(json.dumps(committed))


if __name__ == "__main__":
    main()
