"""Every log event and every metric, with its fields or labels and what it means: the source of docs/events.md.

`python -m onceward_runtime.events` prints that page. Log through `onceward_runtime.log.emit`; nothing else names an event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from prometheus_client import Counter, Gauge, Histogram


@dataclass(frozen=True, slots=True)
class Event:
    """One kind of log line."""

    name: str
    level: Literal["debug", "info", "warning", "error"]
    help: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Metric:
    """What the page says of one metric."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...]


EVENTS: list[Event] = []
METRICS: list[Metric] = []


def _event(name: str, level: Literal["debug", "info", "warning", "error"], text: str, *fields: str) -> Event:
    EVENTS.append(Event(name, level, text, fields))
    return EVENTS[-1]


def _counter(name: str, text: str, *labels: str) -> Counter:
    METRICS.append(Metric(name, "counter", text, labels))
    return Counter(name, text, labels)


def _gauge(name: str, text: str, *labels: str) -> Gauge:
    METRICS.append(Metric(name, "gauge", text, labels))
    return Gauge(name, text, labels)


def _histogram(name: str, text: str, *labels: str, buckets: Iterable[float]) -> Histogram:
    METRICS.append(Metric(name, "histogram", text, labels))
    return Histogram(name, text, labels, buckets=tuple(buckets))


# --- Log events -------------------------------------------------------------------------------------------------------
# `key` is logged as a short hash. Every line also carries the trace id where there is one.
_COMMAND = ("command_id", "type", "key", "attempt", "lane", "group")

SERVICE_STARTED = _event("service.started", "info", "A loop runs.", "service")
SERVICE_STOPPING = _event("service.stopping", "info", "The process was asked to stop and drains.", "signal")
SERVICE_STOPPED = _event("service.stopped", "info", "A loop has finished what it had begun.", "service", "seconds")
SERVICE_DIED = _event("service.died", "error", "A loop ended by itself; the process stops.", "service", "error")
SERVICE_STOP_FAILED = _event("service.stop_failed", "error", "A loop could not be stopped cleanly.", "service", "error")
SERVICE_STEP_FAILED = _event(
    "service.step_failed", "error", "A step of a loop failed and is tried again.", "service", "error"
)
HEALTH_LISTENING = _event("health.listening", "info", "Metrics and health are served at this address.", "url")
DATABASE_LOST = _event("database.lost", "warning", "PostgreSQL does not answer; it is tried again.", "service", "error")
DATABASE_BACK = _event("database.back", "info", "PostgreSQL answers again.", "service", "seconds")
BROKER_LOST = _event("broker.lost", "warning", "Kafka does not answer; it is tried again.", "service", "error")
BROKER_BACK = _event("broker.back", "info", "Kafka answers again.", "service", "seconds")

_FAILURE = ("reason", "error", "where")  # `where` is a place in the service's own code
COMMAND_RETRY = _event(
    "command.retry", "warning", "A command failed and will run again.", *_COMMAND, *_FAILURE, "delay_seconds"
)
COMMAND_DEAD = _event("command.dead", "error", "A command was given up on; see its dead letter.", *_COMMAND, *_FAILURE)
COMMAND_DISCARDED = _event("command.discarded", "info", "A command was dropped on purpose.", *_COMMAND, "reason")
COMMAND_DUPLICATE = _event(
    "command.duplicate", "debug", "A command was not run, since it had been.", *_COMMAND, "reason"
)
COMMAND_PARKED = _event("command.parked", "info", "A command waits in PostgreSQL.", *_COMMAND, "reason")
COMMAND_CRASHED = _event(
    "command.crashed", "warning", "The worker that ran a command is gone; the command was taken over.", *_COMMAND
)
GUARD_TRIPPED = _event(
    "guard.tripped",
    "error",
    "Nearly everything of a type dies: its would-be dead letters are parked (dead_letters_guarded) until it is over.",
    *("group", "type"),
)
GUARD_ENDED = _event("guard.ended", "info", "A type's dead letters pass again.", "group", "type")
RECORD_UNREADABLE = _event(
    "record.unreadable",
    "error",
    "A record cannot be read and became a dead letter.",
    *("topic", "partition", "offset", "group", "reason", "error"),
)
HANDLER_ABANDONED = _event(
    "handler.abandoned",
    "error",
    "A call in a thread was given up after its limit: its attempt has failed, its thread runs on at `where`.",
    *(*_COMMAND, "where", "seconds"),
)
HANDLER_SLOW = _event(
    "handler.slow", "warning", "A call that had been given up has ended, and its thread is free.", *_COMMAND, "seconds"
)
HANDLER_BLOCKS = _event(
    "handler.blocks",
    "warning",
    "An asynchronous handler holds up the event loop, and with it all others, at `where`; told once a minute for each place.",
    *("type", "group", "where", "seconds"),
)
WORKER_REGISTERED = _event(
    "worker.registered", "info", "A worker has its identity.", "incarnation", "group", "host", "pid"
)
WORKER_DRAINING = _event("worker.draining", "info", "A worker finishes what it has begun.", "in_flight", "buffered")
WORKER_DRAINED = _event("worker.drained", "info", "A worker has stopped.", "seconds", "unfinished")
CELL_STARTED = _event("cell.started", "info", "A child process for handlers is ready.", "group", "pid")
CELL_DIED = _event(
    "cell.died",
    "warning",
    "A child process died (died), or was ended since its call took too long (overran). `type` and `command_id` say what it "
    "called then.",
    *("group", "pid", "command_id", "type", "reason", "error"),
)
CELLS_UNAVAILABLE = _event(
    "cells.unavailable",
    "warning",
    "What killed a worker before would be run in a child process now, and none can be started: it is run in threads. Told once.",
    *("group", "error"),
)
PARTITIONS_WARY = _event(
    "partitions.wary",
    "warning",
    "Whoever had these partitions before ended without handing them over: their first commands are run in child processes.",
    *("group", "partitions"),
)
PARTITIONS_ASSIGNED = _event("partitions.assigned", "info", "Partitions came to this worker.", "group", "partitions")
PARTITIONS_REVOKED = _event(
    "partitions.revoked",
    "info",
    "Partitions go to another worker; so many of their records are still being run here.",
    *("group", "partitions", "unfinished"),
)
PARTITIONS_LOST = _event("partitions.lost", "warning", "Partitions were taken without notice.", "group", "partitions")
OFFSETS_FAILED = _event(
    "offsets.failed",
    "warning",
    "Offsets could not be committed. Told once for each cause until they can; rebalances alone are not told.",
    *("group", "partitions", "error"),
)
PARTITION_RESTARTED = _event(
    "partition.restarted",
    "warning",
    "The offset belongs to a log that is gone: the topic was deleted and made again (recreated), or the log ends before "
    "the offset (beyond_end). It is read from its beginning; what was done before is not done again.",
    *("group", "topic", "partition", "offset", "reason"),
)
RECORDS_EXPIRED = _event(
    "records.expired",
    "error",
    "The broker deleted records before this group read them: the topic's retention is too short, or nobody worked.",
    *("group", "topic", "partition", "offset", "records"),
)
LIMITS_CHANGED = _event(
    "limits.changed", "info", "A worker has read what operators set; these are set now.", "group", "limits"
)
BREAKER_OPENED = _event(
    "breaker.opened",
    "warning",
    "A destination is not called for a while. Told by the worker that found it out, for all.",
    *("group", "destination", "reason", "seconds", "trips"),
)
BREAKER_PROBING = _event(
    "breaker.probing", "info", "One call at a time finds out how a destination is.", "group", "destination", "reason"
)
BREAKER_CLOSED = _event("breaker.closed", "info", "A destination is called again.", "group", "destination", "seconds")
DEAD_LETTER_REPLAYED = _event(
    "dead_letter.replayed", "info", "An operator replayed one.", *_COMMAND, "actor", "because"
)
DEAD_LETTER_DISCARDED = _event(
    "dead_letter.discarded", "info", "An operator discarded one.", *_COMMAND, "actor", "because"
)

RELAY_ACTIVE = _event("relay.active", "info", "This relay holds the slot.", "slot", "position", "mode")
RELAY_STANDBY = _event("relay.standby", "info", "Another relay holds the slot; this one waits.", "slot", "pid")
RELAY_SWEPT = _event("relay.swept", "info", "A new slot's backlog was read from the table.", "slot", "rows", "seconds")
RELAY_SLOT_CREATED = _event("relay.slot_created", "warning", "The slot did not exist and was made.", "slot", "position")
RELAY_RECONNECTING = _event("relay.reconnecting", "warning", "The stream broke off.", "slot", "error", "delay_seconds")
RELAY_ROW_PARKED = _event(
    "relay.row_parked",
    "error",
    "Kafka will never accept this row; it is kept in onceward.outbox_parked.",
    *("seq", "command_id", "topic", "reason", "error"),
)
RELAY_CLEANED = _event("relay.cleaned", "debug", "Relayed rows were deleted from the outbox.", "rows", "seconds")
RELAY_POLLING = _event("relay.polling", "warning", "The relay polls, since it cannot stream.", "reason")

LEADERSHIP_TAKEN = _event("leadership.taken", "info", "This scheduler leads a partition.", "app", "partition", "epoch")
LEADERSHIP_LOST = _event("leadership.lost", "info", "It leads it no longer.", "app", "partition", "reason")
TICK_EMITTED = _event(
    "tick.emitted",
    "info",
    "A schedule's tick became a command.",
    *("app", "schedule", "scheduled_at", "command_id", "lateness_seconds"),
)
TICK_SKIPPED = _event("tick.skipped", "info", "A tick was not emitted.", "app", "schedule", "scheduled_at", "reason")
TICK_FAILED = _event("tick.failed", "error", "A tick could not be emitted.", "app", "schedule", "scheduled_at", "error")
SCHEDULE_UNDECLARED = _event(
    "schedule.undeclared",
    "warning",
    "The app declares a schedule no longer; it is kept, not emitted.",
    "app",
    "schedule",
)
DELAYED_EMITTED = _event("delayed.emitted", "info", "Commands whose time has come were published.", "size")

RUN_COMPLETED = _event(
    "run.completed", "info", "All items are accounted for.", "run_id", "kind", "state", "done", "failed"
)

HOUSEKEEPING_DONE = _event(
    "housekeeping.done",
    "info",
    "Ledger weeks were made and dropped, old rows deleted.",
    *("prepared", "dropped", "ledger_rows", "attempts", "effects", "workers", "seconds"),
)
HOUSEKEEPING_BUSY = _event(
    "housekeeping.busy", "info", "A table was too busy to be changed; it is tried again.", "error", "delay_seconds"
)
TICKS_FORGOTTEN = _event("ticks.forgotten", "info", "Old ticks were deleted from the history.", "size")

# --- Metrics ----------------------------------------------------------------------------------------------------------
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_WAITS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600)

COMMANDS = _counter("onceward_commands_total", "Executions by outcome.", "lane", "type", "outcome")
HANDLER_SECONDS = _histogram("onceward_handler_seconds", "How long handlers ran.", "lane", "type", buckets=_FAST)
START_SECONDS = _histogram(
    "onceward_start_seconds",
    "From publishing a command, or its not_before, to its first start.",
    "lane",
    "type",
    buckets=_WAITS,
)
DONE_SECONDS = _histogram(
    "onceward_done_seconds",
    "From publishing a command, or its not_before, to its effect.",
    "lane",
    "type",
    buckets=_WAITS,
)
RETRIES = _counter("onceward_retries_total", "Failures that will be tried again.", "lane", "type", "reason")
DUPLICATES = _counter("onceward_duplicates_total", "Records not run, since the ledger knew them.", "lane", "reason")
SKIPPED = _counter(
    "onceward_records_skipped_total",
    "Records left to other groups: sent to one of them (other_group), or of a type in the app's ignores (ignored_type).",
    "lane",
    "reason",
)
DEAD_LETTERS = _counter("onceward_dead_letters_total", "Commands given up on.", "lane", "type", "reason")
DEAD_LETTERS_OPEN = _gauge("onceward_dead_letters_open", "Dead letters that wait for a decision.", "group", "lane")
PARKED = _gauge("onceward_parked", "Commands that wait in PostgreSQL.", "group", "lane", "reason")
HELD_KEYS = _gauge("onceward_held_keys", "Keys whose head command is not resolved.", "group", "lane", "state")
IN_FLIGHT = _gauge("onceward_in_flight", "Commands that run now.", "lane")
BUFFERED = _gauge("onceward_buffered", "Commands in memory that have not started.", "lane")
HEAD_AGE_SECONDS = _gauge("onceward_head_age_seconds", "Age of the oldest command in memory.", "lane")
UNFINISHED_AGE_SECONDS = _gauge(
    "onceward_unfinished_age_seconds",
    "Age of the oldest command in memory that has not ended, running ones included.",
    "lane",
)
OFFSETS_AHEAD = _gauge(
    "onceward_offsets_ahead", "Records that are finished, while an older one of their partition is not.", "lane"
)
RUNNERS = _gauge("onceward_runners", "Threads, tasks and calls that can run at the same time.", "group", "kind")
RUNNERS_BUSY = _gauge("onceward_runners_busy", "Those that run something.", "group", "kind")
RUNNERS_HUNG = _gauge("onceward_runners_hung", "Threads that hang in calls that were given up.", "group", "kind")
ASSIGNED_PARTITIONS = _gauge("onceward_assigned_partitions", "Partitions that this worker has.", "group")
REBALANCES = _counter("onceward_rebalances_total", "Changes: assigned, revoked or lost.", "group", "kind")
ABANDONED_CALLS = _counter("onceward_abandoned_calls_total", "Calls in threads that were given up.", "type")
LOOP_BLOCKED = _counter(
    "onceward_loop_blocked_total", "Stalls of the event loop, by the asynchronous handler that blocks it.", "type"
)
CELL_DEATHS = _counter(
    "onceward_cell_deaths_total", "Child processes that died, or were ended (overran).", "group", "reason"
)
OFFSET_COMMITS = _counter("onceward_offset_commits_total", "Commits: ok or failed.", "group", "outcome")

LIMIT_RUNNING = _gauge(
    "onceward_limit_running", "Calls under a limit that run in this worker; all tenants together.", "group", "limit"
)
LIMIT_WAITING = _gauge("onceward_limit_waiting", "Keys that wait in memory for a limit.", "group", "limit")
LIMIT_REFUSALS = _counter(
    "onceward_limit_refusals_total",
    "Keys that met a limit: throttled, over_quota (a tenant's), paused or breaker_open.",
    *("group", "limit", "reason"),
)
DEAD_LETTERS_GUARDED = _gauge(
    "onceward_dead_letters_guarded", "1 while this worker holds a type's dead letters back.", "group", "type"
)
BREAKER_STATE = _gauge(
    "onceward_breaker_state", "0 closed, 1 probing, 2 open; the same in all workers.", "group", "destination"
)

RELAY_ROWS = _counter("onceward_relay_rows_total", "Outbox rows: relayed or parked.", "slot", "outcome")
RELAY_TRANSACTIONS = _counter("onceward_relay_transactions_total", "Transactions read to their end.", "slot")
RELAY_BYTES = _counter("onceward_relay_bytes_total", "Bytes of outbox rows read.", "slot")
RELAY_LAG_SECONDS = _gauge("onceward_relay_lag_seconds", "Age of the oldest row not acknowledged yet.", "slot")
RELAY_ACTIVE_SLOT = _gauge("onceward_relay_active", "1 while this relay holds the slot.", "slot")
RELAY_RETAINED_WAL_BYTES = _gauge("onceward_relay_retained_wal_bytes", "Log that the slot keeps on the server.", "slot")
RELAY_PENDING_ROWS = _gauge("onceward_relay_pending_rows", "Rows read and not acknowledged yet.", "slot")
RELAY_RECONNECTS = _counter("onceward_relay_reconnects_total", "Streams that broke off.", "slot")
OUTBOX_PARKED = _gauge("onceward_outbox_parked", "Rows that Kafka will never accept and nobody has decided on.", "slot")

TICKS = _counter("onceward_scheduler_ticks_total", "Ticks: emitted, skipped or failed.", "app", "outcome")
LATENESS_SECONDS = _histogram(
    "onceward_scheduler_lateness_seconds", "From a tick's instant to its emission.", "app", buckets=_WAITS
)
LEADING = _gauge("onceward_scheduler_partitions", "Partitions of schedules that this process leads.", "app")
RUNS = _gauge("onceward_runs", "Runs that are not completed, by state; the same in all workers.", "kind", "state")


def page() -> str:
    """Return docs/events.md."""
    lines = [
        "# Events and metrics",
        "",
        "Generated by `python -m onceward_runtime.events > docs/events.md`; edit runtime/onceward_runtime/events.py.",
        "",
        "Every log line is one event. `key` is a short hash of the key; payloads are never logged. A line carries",
        "`trace_id` where a trace is known; `where` is the innermost place in the service's own code, as",
        "`service.py:12 in charge`.",
        "",
        "| Event | Level | Meaning | Fields |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{e.name}` | {e.level} | {e.help} | {_list(e.fields)} |" for e in EVENTS]
    lines += [
        "",
        "Processes serve these metrics under `/metrics` (Prometheus) when ONCEWARD_HTTP_PORT is set.",
        "",
        "| Metric | Kind | Meaning | Labels |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{m.name}` | {m.kind} | {m.help} | {_list(m.labels)} |" for m in METRICS]
    return "\n".join(lines) + "\n"


def _list(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    print(page(), end="")
