"""A small command type and an encoder without a registry, for tests that are not about encoding."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import ClassVar

from onceward_schemas.command import Command, CommandSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeReport(Command):
    """Make a report for one date."""

    SCHEMA: ClassVar[CommandSchema] = CommandSchema(
        name="test.MakeReport", version=1, lane="test.reports", key="report", aggregate="report", avro={}
    )
    report: str
    date: str = ""


class JsonEncoder:
    """Payloads as JSON."""

    def encode(self, command: Command, /) -> bytes:
        """The fields, in order."""
        return json.dumps(asdict(command)).encode()  # type: ignore[call-overload]


def decoded(payload: bytes) -> dict[str, str]:
    """What `JsonEncoder` wrote."""
    return dict(json.loads(payload))
