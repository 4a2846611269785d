"""Runs the relay for the Debezium judge: a table with Debezium's columns, told by JUDGE_* variables, until SIGTERM.

    run.py golden --relay "cmd:.venv/bin/python benchmarks/relay.py"

The judge's table has other columns than ours and its topics a prefix, so this is also an example of a layout.
"""

from __future__ import annotations

import os
import sys

from pydantic import SecretStr

from onceward_outbox_relay import slot
from onceward_outbox_relay.layout import Layout
from onceward_outbox_relay.relay import Relay, RelayOptions
from onceward_outbox_relay.replication import ReplicationLink
from onceward_runtime import log, migrate, postgres
from onceward_runtime.service import run_until_signal
from onceward_runtime.settings import Settings

PLACED = ("type", "version", "tenant", "dedupe_key", "request_id", "traceparent")


def main() -> int:
    """Adopt the judge's slot, so that its table is not swept, and relay."""
    name = os.environ["JUDGE_SLOT"]
    settings = Settings(
        database_url=SecretStr(os.environ["JUDGE_DSN"]),
        kafka_bootstrap_servers=os.environ["JUDGE_BOOTSTRAP"],
        slot=name,
        publication=os.environ["JUDGE_PUBLICATION"],
    )
    log.configure(settings)
    with postgres.connect(settings, application_name="judge", autocommit=True) as connection:
        first = migrate.migrations()[0].sql
        for table in ("dedupe", "outbox_parked", "relay_slots"):
            if connection.execute("select to_regclass(%s)", (f"onceward.{table}",)).fetchone() == (None,):
                connection.execute(_statements(first, table))
        link = ReplicationLink(settings)
        system = link.identify()
        link.close()
        state = slot.look_up(connection, name)
        if state is None or state.confirmed is None:
            sys.exit(f"There is no slot {name!r}.")
        if slot.acknowledged(connection, name, system) is None or os.environ.get("JUDGE_ADOPT", "1") == "1":
            slot.mark_swept(connection, name, system, state.confirmed)
    schema, table = os.environ["JUDGE_TABLE"].split(".")
    layout = Layout(
        schema=schema,
        table=table,
        topic="aggregatetype",
        topic_prefix=os.environ["JUDGE_PREFIX"],
        headers=tuple((column, column) for column in ("id", *PLACED)),
        xid=None,
    )
    more = dict(pair.split("=", 1) for pair in os.environ.get("ONCEWARD_BENCH_PRODUCER", "").split(",") if pair)
    flush = float(os.environ.get("ONCEWARD_BENCH_FLUSH_SECONDS", RelayOptions().flush_seconds))
    options = RelayOptions(mode="stream", layout=layout, producer=more, flush_seconds=flush)
    return run_until_signal([Relay(settings, options)])


def _statements(migration: str, table: str) -> str:
    """The statement of the migration that makes one table."""
    start = migration.index(f"create table onceward.{table} (")
    return migration[start : migration.index(";", start)]


if __name__ == "__main__":
    sys.exit(main())
