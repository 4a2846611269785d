"""`onceward outbox`: what waits there and who relays it; rows that Kafka will never accept, and what to do with them."""

from __future__ import annotations

import getpass
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

import psycopg
import typer

from onceward_cli.output import Output, OutputOption, say, show, show_one
from onceward_outbox_relay import decisions
from onceward_outbox_relay.decisions import Selection
from onceward_outbox_relay.status import outbox_status
from onceward_runtime import postgres, settings
from onceward_schemas.errors import OncewardError

app = typer.Typer(help="Show what waits in the outbox and who relays it; decide on parked rows.", no_args_is_help=True)
parked = typer.Typer(help="Rows that Kafka will never accept as they are.", no_args_is_help=True)
app.add_typer(parked, name="parked")

_LEAST = ("decided_because", "decided_by", "state", "parked_at", "id", "bytes", "error")
"""What a narrow terminal can do without, in this order; rows are named by their `seq`."""

Seqs = Annotated[list[int] | None, typer.Argument(help="Numbers of the rows, as `list` shows them.")]
Topic = Annotated[str | None, typer.Option(help="Only rows of this topic.")]
Key = Annotated[str | None, typer.Option(help="Only rows of this key.")]
Reason = Annotated[str | None, typer.Option(help="Only rows parked for this reason.")]
All = Annotated[bool, typer.Option("--all", help="Every parked row.")]
Because = Annotated[str | None, typer.Option(help="Why; kept with the row.")]
Actor = Annotated[str | None, typer.Option(help="Who decides. Defaults to the user of this machine.")]
State = Annotated[str, typer.Option(help="parked, replaying, replayed, discarded, or any.")]
Limit = Annotated[int, typer.Option(min=1, help="At most so many.")]


@app.command()
def status(output: OutputOption = Output.TABLE) -> None:
    """Show pending and parked rows, whether a relay is active, and the log that its slot keeps."""
    configuration = settings.load()
    with postgres.connect(configuration, application_name="onceward outbox", autocommit=True) as connection:
        found = outbox_status(connection, configuration.slot)
    fields = asdict(found)
    if output is Output.TABLE:
        fields["relay"] = found.relay or "none is active"
        fields["wal_status"] = found.wal_status or "no slot"
        fields |= {name: "-" for name in ("oldest_seconds", "retained_bytes") if fields[name] is None}
        if found.oldest_seconds is not None:
            fields["oldest_seconds"] = round(found.oldest_seconds, 1)
    show_one(fields, output)
    if found.pending and found.relay is None:
        say("No relay is active, so the rows stay. Start one: `onceward relay`.")
    if found.parked:
        say("Parked rows wait for a decision: `onceward outbox parked list`.")


@parked.command("list")
def list_rows(
    output: OutputOption = Output.TABLE,
    topic: Topic = None,
    key: Key = None,
    reason: Reason = None,
    state: State = "parked",
    limit: Limit = 100,
) -> None:
    """List rows in the order in which they were published."""
    selection = Selection(topic=topic, key=key, reason=reason, state=None if state == "any" else state)
    with _connected() as connection:
        show(decisions.parked_rows(connection, selection, limit), output, empty="No row is parked.", least=_LEAST)


@parked.command()
def replay(
    seqs: Seqs = None,
    topic: Topic = None,
    key: Key = None,
    reason: Reason = None,
    everything: All = False,
    because: Because = None,
    actor: Actor = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let the relay try rows again, in order; their followers go on after them."""
    selection = _selection(seqs, topic, key, reason, everything)
    _decide(decisions.replay, selection, actor, because, "The relay will try {} again.", output)


@parked.command()
def discard(
    seqs: Seqs = None,
    topic: Topic = None,
    key: Key = None,
    reason: Reason = None,
    everything: All = False,
    because: Because = None,
    actor: Actor = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give rows up; their followers go on by themselves."""
    selection = _selection(seqs, topic, key, reason, everything)
    _decide(decisions.discard, selection, actor, because, "Discarded {}.", output)


def _selection(
    seqs: list[int] | None, topic: str | None, key: str | None, reason: str | None, everything: bool
) -> Selection:
    """Raises: OncewardError when nothing narrows the rows and `--all` is not given."""
    if not (seqs or topic or key or reason or everything):
        raise OncewardError("No rows are named.", remedy="Give their numbers, --topic, --key, --reason, or --all.")
    return Selection(seqs=tuple(seqs) if seqs else None, topic=topic, key=key, reason=reason)


def _decide(
    decision: Callable[..., list[int]],
    selection: Selection,
    actor: str | None,
    because: str | None,
    text: str,
    output: Output,
) -> None:
    with _connected() as connection:
        seqs = decision(connection, selection, actor=actor or getpass.getuser(), because=because)
    if output is Output.JSON:
        show([{"seq": seq} for seq in sorted(seqs)], output)
        return
    if not seqs:
        raise OncewardError("No parked row fits.", remedy="See `onceward outbox parked list --state any`.")
    say(text.format(f"{len(seqs)} row{'s' if len(seqs) > 1 else ''}"))


def _connected() -> psycopg.Connection[Any]:
    return postgres.connect(settings.load(), application_name="onceward outbox", autocommit=True)
