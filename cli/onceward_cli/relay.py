"""`onceward relay`: moves commands from the outbox to Kafka until it is stopped."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import Annotated

import typer

from onceward_outbox_relay.relay import Relay, RelayOptions
from onceward_runtime import log, settings
from onceward_runtime.health import HealthServer
from onceward_runtime.service import run_until_signal

app = typer.Typer(help="Move commands from the outbox to Kafka.")


class Mode(StrEnum):
    """Where rows are read."""

    AUTO = "auto"
    STREAM = "stream"
    POLL = "poll"


class Policy(StrEnum):
    """What follows a row that Kafka will never accept."""

    PARK_KEY = "park_key"
    PARK_ROW = "park_row"
    STOP = "stop"


ModeOption = Annotated[
    Mode, typer.Option(help="Stream the write-ahead log, poll the table, or stream where the server allows it.")
]
SlotOption = Annotated[str | None, typer.Option(help="The replication slot. Defaults to ONCEWARD_SLOT.")]
PublicationOption = Annotated[str | None, typer.Option(help="The publication. Defaults to ONCEWARD_PUBLICATION.")]
PolicyOption = Annotated[
    Policy,
    typer.Option(
        help="After a row that Kafka will never accept: park the later rows of its key too, park it alone, or stop."
    ),
]
GraceOption = Annotated[float, typer.Option(min=0, help="How long a topic may be missing before its rows are parked.")]


@app.command()
def relay(
    mode: ModeOption = Mode.AUTO,
    slot: SlotOption = None,
    publication: PublicationOption = None,
    policy: PolicyOption = Policy.PARK_KEY,
    grace_seconds: GraceOption = 10.0,
) -> None:
    """Run until SIGTERM. Several may run: one relays, the others stand by and take over."""
    given = {"slot": slot, "publication": publication}
    loaded = settings.load(**{name: value for name, value in given.items() if value is not None})
    log.configure(loaded)
    options = RelayOptions(mode=mode.value, policy=policy.value, grace=timedelta(seconds=grace_seconds))
    service = Relay(loaded, options)
    raise typer.Exit(run_until_signal([HealthServer(loaded, [service]), service]))
