"""How many ticks one scheduler emits in a second when many are due; also the application that it runs."""

from __future__ import annotations

import os

import psycopg

from benchmarks.charges import charge
from benchmarks.figures import Figure
from benchmarks.measuring import Budget, Values, Watch, rounds, watched
from benchmarks.places import Place
from benchmarks.processes import COMMAND_LINE, running, until
from onceward_consumer import topics
from onceward_consumer.app import App
from onceward_runtime.settings import Settings

SCHEDULES = 100
GROUP = "ONCEWARD_BENCH_GROUP"


def application(name: str) -> App:
    """A hundred schedules that each publish a command a second."""
    found = App(name)
    for number in range(SCHEDULES):
        job = number
        found.schedule("every 1s", catch_up="1h", id=f"schedule-{number}")(lambda tick, job=job: charge(job, 1000))
    return found


app = application(os.environ.get(GROUP, "bench"))


def figures(place: Place, budget: Budget) -> list[Figure]:
    """Set the schedules back by some minutes and watch one leader catch up."""
    seconds = budget.count(30_000) // SCHEDULES

    def sample(watch: Watch) -> Values:
        group = place.unique()
        topics.apply(application(group), Settings(kafka_bootstrap_servers=place.bootstrap), replication=1)
        with place.database() as dsn, psycopg.connect(dsn, autocommit=True) as connection:
            environment = place.environment(dsn) | {GROUP: group}
            arguments = (COMMAND_LINE, "scheduler", "benchmarks.ticking:app")

            def number(query: str) -> float:
                row = connection.execute(query).fetchone()
                return float(row[0] or 0) if row else 0.0

            with running(*arguments, environment=environment):
                until(lambda: number("select count(*) from onceward.ticks") > 0, 60, "the first tick")
            connection.execute("truncate onceward.ticks, onceward.outbox")
            back = "update onceward.schedules set next_at = next_at - make_interval(secs => %s), due_at = now()"
            connection.execute(back, (seconds,))
            with watched(watch), running(*arguments, environment=environment):
                behind = "select count(*) from onceward.schedules where next_at < now() - interval '3 seconds'"
                until(lambda: number(behind) == 0, 120, "every schedule has caught up", pause=0.2)
            emitted = "from onceward.ticks where outcome = 'emitted'"
            took = number(f"select extract(epoch from max(emitted_at) - min(emitted_at)) {emitted}")
            return {"per_s": number(f"select count(*) {emitted}") / took}

    found = rounds({"scheduler": sample}, budget, times=1)["scheduler"]
    return [
        Figure(
            name="ticks emitted by one scheduler",
            ours=found.median("per_s"),
            unit="ticks/s",
            target=5000,
            of="ours",
            strangers=found.strangers,
        )
    ]
