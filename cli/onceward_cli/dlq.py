"""`onceward dlq`: judge dead letters, one or many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import typer

from onceward_cli.output import Output, OutputOption, headed, say, show, show_one
from onceward_cli.people import user
from onceward_consumer import dead_letter_decisions as decisions
from onceward_consumer import dead_letters
from onceward_consumer.dead_letters import Connection, DeadLetter, Filter, Identity
from onceward_consumer.durations import duration
from onceward_producer.default import codec_for
from onceward_runtime import events, log, settings
from onceward_runtime.postgres import connect
from onceward_schemas.errors import AppError, DeadLetterError, RegistryUnavailableError, UndecodableError

app = typer.Typer(help="Judge dead letters: list, show, replay, discard.", no_args_is_help=True)

_ANY = "any"
_HEX_BYTES = 64
_REFUSALS_SHOWN = 20
_LEAST = ("state", "lane", "attempts", "app", "dead_at", "key", "type", "error", "cause")
"""What a narrow terminal can do without, in this order."""

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Command ids.")]
Group = Annotated[str | None, typer.Option("--app", "--group", help="The app, which is the consumer group.")]
Lane = Annotated[str | None, typer.Option(help="The lane.")]
Type = Annotated[str | None, typer.Option("--type", help="The command's full name.")]
Reason = Annotated[str | None, typer.Option(help="The reason code, as `groups` shows it.")]
Key = Annotated[str | None, typer.Option(help="The key.")]
Run = Annotated[str | None, typer.Option("--run", help="The id of the run.")]
Since = Annotated[str | None, typer.Option(help="Given up on since: an ISO date or time, or for instance 2h or 1d.")]
State = Annotated[str, typer.Option(help=f"One of {', '.join(dead_letters.STATES)}, or {_ANY}.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")]
All = Annotated[bool, typer.Option("--all", help="Every open one that fits the options.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
By = Annotated[str | None, typer.Option(help="Who decides, for the record. Defaults to user@host.")]


@app.command()
def groups(
    group: Group = None,
    lane: Lane = None,
    type_: Type = None,
    reason: Reason = None,
    key: Key = None,
    run: Run = None,
    since: Since = None,
    state: State = "open",
    limit: Limit = 100,
    output: OutputOption = Output.TABLE,
) -> None:
    """Count dead letters by app, lane, type, reason and cause; the largest heap first."""
    wanted = _filter(group, lane, type_, reason, key, run, since, state)
    with _connected() as connection:
        rows = [asdict(heap) for heap in dead_letters.heaps(connection, wanted, limit)]
    show([headed(row) for row in rows], output, empty="No dead letters.")


@app.command("list")
def list_(
    group: Group = None,
    lane: Lane = None,
    type_: Type = None,
    reason: Reason = None,
    key: Key = None,
    run: Run = None,
    since: Since = None,
    state: State = "open",
    limit: Limit = 50,
    output: OutputOption = Output.TABLE,
) -> None:
    """List dead letters, oldest first."""
    wanted = _filter(group, lane, type_, reason, key, run, since, state)
    with _connected() as connection:
        found = dead_letters.find(connection, wanted, limit + 1)
    show([_line(letter) for letter in found[:limit]], output, empty="No dead letters.", least=_LEAST)
    if len(found) > limit:
        say(f"There are more than {limit}; see --limit, or `onceward dlq groups`.")


@app.command("show")
def show_(
    id_: Annotated[str, typer.Argument(metavar="ID", help="A command id.")],
    group: Group = None,
    payload: Annotated[bool, typer.Option("--payload", help="Decode and print the payload too.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one in full: error, headers, and every attempt."""
    with _connected() as connection:
        letter = dead_letters.one(connection, _id(id_), group)
        attempts = [asdict(attempt) for attempt in dead_letters.attempts(connection, letter.identity)]
        fields = headed(asdict(letter)) | {"waiting_behind_it": dead_letters.waiting(connection, letter.identity)}
        if payload:
            fields |= _payload(dead_letters.payload(connection, letter.identity))
    if output is Output.JSON:
        show_one(fields | {"attempts_history": attempts}, output)
        return
    headers = {name: value for name, value in fields.pop("headers") if value is not None}
    show_one({name: value for name, value in fields.items() if value is not None}, output)
    print("\nHeaders")
    show_one(headers, output)
    print("\nFailed attempts")
    show(attempts, output, empty="None is on record.", least=("worker", "at"))


@app.command()
def replay(
    ids: Ids = None,
    all_: All = False,
    group: Group = None,
    lane: Lane = None,
    type_: Type = None,
    reason: Reason = None,
    key: Key = None,
    run: Run = None,
    since: Since = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="With --all: the oldest so many.")] = None,
    because: Annotated[str | None, typer.Option(help="Why, for the record.")] = None,
    by: By = None,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send dead letters back to their lanes, with their attempts beginning anew."""
    wanted = _filter(group, lane, type_, reason, key, run, since, "open")
    _judge("replay", _Meant(ids, all_, wanted, limit), by or user(), because, yes=yes, output=output)


@app.command()
def discard(
    because: Annotated[str, typer.Option(help="Why, for the record.")],
    ids: Ids = None,
    all_: All = False,
    group: Group = None,
    lane: Lane = None,
    type_: Type = None,
    reason: Reason = None,
    key: Key = None,
    run: Run = None,
    since: Since = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="With --all: the oldest so many.")] = None,
    by: By = None,
    yes: Yes = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give dead letters up for good; commands that waited behind one in strict order go on."""
    wanted = _filter(group, lane, type_, reason, key, run, since, "open")
    _judge("discard", _Meant(ids, all_, wanted, limit), by or user(), because, yes=yes, output=output)


def _filter(
    group: str | None,
    lane: str | None,
    type_: str | None,
    reason: str | None,
    key: str | None,
    run: str | None,
    since: str | None,
    state: str,
) -> Filter:
    if state not in (*dead_letters.STATES, _ANY):
        raise DeadLetterError(
            f"There is no state {state!r:.40}.", remedy=f"Use one of {', '.join((*dead_letters.STATES, _ANY))}."
        )
    return Filter(
        group=group,
        lane=lane,
        type=type_,
        reason=reason,
        key=key,
        run_id=None if run is None else _id(run),
        since=None if since is None else _instant(since),
        state=None if state == _ANY else state,
    )


@dataclass(frozen=True, slots=True)
class _Meant:
    """Which dead letters the command line means: by id, or all that fit."""

    ids: list[str] | None
    all: bool
    wanted: Filter
    limit: int | None


def _judge(
    verb: Literal["replay", "discard"], meant: _Meant, who: str, because: str | None, *, yes: bool, output: Output
) -> None:
    with _connected() as connection:
        named = _named(connection, meant)
        _confirm(verb, len(named), meant.all, yes)

        def decide(batch: list[Identity]) -> decisions.Decision:
            if verb == "replay":
                event = events.DEAD_LETTER_REPLAYED
                decision = decisions.replay(connection, batch, by=who, because=because)
            else:
                event = events.DEAD_LETTER_DISCARDED
                decision = decisions.discard(connection, batch, by=who, because=because or "")
            _log(event, decision, who, because)
            return decision

        _decide(named, decide, f"{verb}ed", output)


def _named(connection: Connection, meant: _Meant) -> list[Identity]:
    ids, wanted = meant.ids, meant.wanted
    if ids and meant.all:
        raise DeadLetterError("Both ids and --all are given.", remedy="Give one of them.")
    if meant.all:
        return dead_letters.identities(connection, wanted, meant.limit)
    if not ids:
        raise DeadLetterError("No dead letter is named.", remedy="Give ids, or --all with options that choose.")
    narrowing = asdict(wanted) | {"group": None, "state": None}
    if any(value is not None for value in narrowing.values()) or meant.limit is not None:
        raise DeadLetterError(
            "Options that choose among many stand beside ids.", remedy="Leave them out, or use --all without ids."
        )
    return [dead_letters.one(connection, _id(text), wanted.group).identity for text in ids]


def _confirm(verb: str, count: int, all_: bool, yes: bool) -> None:
    if not all_ or not count or yes:
        return
    what = f"{count} dead letter{'s' if count > 1 else ''}"
    if not sys.stdin.isatty():
        raise DeadLetterError(f"This would {verb} {what}.", remedy="Say so with --yes.")
    typer.confirm(f"{verb.capitalize()} {what}?", abort=True, err=True)


def _decide(
    named: list[Identity],
    decide: Callable[[list[Identity]], decisions.Decision],
    done_word: str,
    output: Output,
) -> None:
    """Decide in batches, each a transaction; exits with 1 where one was refused."""
    done: list[Identity] = []
    refused: list[decisions.Refusal] = []
    for start in range(0, len(named), decisions.BATCH):
        decision = decide(named[start : start + decisions.BATCH])
        done += decision.done
        refused += decision.refused
        if len(named) > decisions.BATCH:
            say(f"{len(done) + len(refused)} of {len(named)}")
    if output is Output.JSON:
        show_one(
            {
                done_word: [{"app": group, "id": command_id} for group, command_id in done],
                "refused": [
                    {"app": r.identity.group, "id": r.identity.command_id, "reason": r.reason} for r in refused
                ],
            },
            output,
        )
    else:
        print(f"{len(done)} {done_word}.")
        for refusal in refused[:_REFUSALS_SHOWN]:
            say(f"{refusal.identity.command_id} of {refusal.identity.group} {refusal.reason}.")
        if len(refused) > _REFUSALS_SHOWN:
            say(f"… and {len(refused) - _REFUSALS_SHOWN} more were refused.")
    if refused:
        raise typer.Exit(1)


def _log(event: events.Event, decision: decisions.Decision, who: str, because: str | None) -> None:
    """For those who collect logs; a person at a terminal reads the summary, and the table keeps every decision."""
    configuration = settings.load()
    if configuration.log_format != "json":
        return
    log.configure(configuration)
    for group, command_id in decision.done:
        log.emit(event, command_id=command_id, group=group, actor=who, because=because)


def _line(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.command_id,
        "app": letter.consumer_group,
        "lane": letter.lane,
        "type": letter.type,
        "key": letter.key,
        "reason": letter.reason,
        "cause": letter.cause,
        "attempts": letter.attempts,
        "dead_at": letter.dead_at,
        "state": letter.state,
        "error": letter.error,
    }


def _payload(data: bytes | None) -> dict[str, Any]:
    """The decoded values, or why they cannot be had, and the first bytes."""
    try:
        return {"payload": codec_for(settings.load()).inspect(data).values}
    except (UndecodableError, RegistryUnavailableError) as error:
        head = (data or b"")[:_HEX_BYTES].hex(" ")
        return {"payload": None, "payload_problem": error.message, "payload_begins": head}


def _id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise DeadLetterError(f"{text!r:.60} is not an id.", remedy="Copy one from `onceward dlq list`.") from None


def _instant(text: str) -> datetime:
    """An instant as written, or so long ago; without a zone it is local time."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - duration(text, "--since")
    except AppError as error:
        raise DeadLetterError(error.message, remedy="Write it like 2026-11-30, 2026-11-30T08:00, 2h or 1d.") from None


@contextmanager
def _connected() -> Iterator[Connection]:
    with connect(settings.load(), application_name="onceward dlq", autocommit=True) as connection:
        yield connection
