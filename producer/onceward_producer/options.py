"""What a publisher may say about a command beside its fields, and the checks on it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from onceward_schemas.errors import InvalidCommandError

MAX_TEXT_BYTES = 1024
"""The size cap of a key and of each text option: they travel in headers and stand in indexes."""
DEFAULT_WINDOW = timedelta(days=1)
"""How long a dedupe key drops duplicates, unless told otherwise."""
_MAX_WINDOW = timedelta(days=3660)
_MAX_SEQUENCE = 2**63


class RowOptions(TypedDict, total=False):
    """What goes into the row. None means: not given."""

    tenant: str | None
    run_id: UUID | None
    item: str | None
    """The identity of the run's item that the command works on."""
    request_id: str | None
    origin: str | None
    """The service or screen that asks for it."""
    actor: str | None
    """The person or account on whose behalf it runs."""
    operation: str | None
    business_key: str | None
    idempotency_key: str | None
    """Names the business action; the same over attempts and replays. Defaults to the command's id."""
    sequence: int | None
    """An order number within the key."""
    deadline: datetime | None
    """After this instant the command is discarded instead of run. Must be aware."""
    causation: UUID | None
    """The command whose handler publishes this one."""


class PublishOptions(RowOptions, total=False):
    """What `outbox.publish` takes: the row's options and how it is put in. None means: not given."""

    dedupe_key: str | None
    """A second command of the type with the same key is dropped while the window is open."""
    dedupe_window: timedelta | None
    """Counted from the first command with the key. Defaults to a day."""
    not_before: datetime | None
    """The command does not reach its lane before this instant. Must be aware."""


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set, each found valid.

    Raises: InvalidCommandError naming the option; TypeError for an unknown one, with the nearest name.
    """
    given = {}
    for name, value in options.items():
        check = _CHECKS.get(name)
        if check is None:
            near = difflib.get_close_matches(name, _CHECKS, n=1)
            raise TypeError(f"{name!r} is not an option of publish." + (f" Did you mean {near[0]!r}?" if near else ""))
        if value is not None:
            check(name, value)
            given[name] = value
    if "dedupe_window" in given and "dedupe_key" not in given:
        raise _invalid("dedupe_window", "is given without dedupe_key", "Pass both, or neither.")
    if "deadline" in given and "not_before" in given and given["deadline"] <= given["not_before"]:
        raise _invalid("deadline", "is not after not_before", "Such a command would never run; move one of the two.")
    return given


def check_text(name: str, value: str) -> None:
    """Refuse text that PostgreSQL or a header cannot hold.

    Raises: InvalidCommandError naming the field.
    """
    if not value.isascii():
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            raise _invalid(
                name, "holds half a surrogate pair, which UTF-8 cannot express", "Pass valid text."
            ) from None
    else:
        size = len(value)
    if size > MAX_TEXT_BYTES:
        raise _invalid(
            name, f"takes {size:,} bytes; the cap is {MAX_TEXT_BYTES:,}", "Pass something shorter, such as a hash."
        )
    if "\0" in value:
        raise _invalid(name, "holds a NUL character, which PostgreSQL does not store", "Remove it.")


def _text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise _invalid(name, f"is of type {type(value).__name__}", "Pass a string.")
    if not value:
        raise _invalid(name, "is empty", "Leave it out, or pass None.")
    check_text(name, value)


def _uuid(name: str, value: Any) -> None:
    if not isinstance(value, UUID):
        raise _invalid(name, f"is of type {type(value).__name__}", "Pass a uuid.UUID.")


def _instant(name: str, value: Any) -> None:
    if not isinstance(value, datetime):
        raise _invalid(name, f"is of type {type(value).__name__}", "Pass a datetime with a time zone.")
    if value.utcoffset() is None:
        raise _invalid(name, "has no time zone", "Pass an aware datetime, for instance in UTC.")


def _window(name: str, value: Any) -> None:
    if not isinstance(value, timedelta):
        raise _invalid(name, f"is of type {type(value).__name__}", "Pass a timedelta.")
    if not timedelta(0) < value <= _MAX_WINDOW:
        raise _invalid(name, f"is {value}", f"Pass more than zero and at most {_MAX_WINDOW.days} days.")


def _sequence(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not -_MAX_SEQUENCE <= value < _MAX_SEQUENCE:
        raise _invalid(name, "is not a 64-bit whole number", "Pass an int.")


def _invalid(name: str, what: str, remedy: str) -> InvalidCommandError:
    return InvalidCommandError(f"{name} {what}.", field=name, remedy=remedy)


_TEXTS = [
    "tenant",
    "item",
    "request_id",
    "origin",
    "actor",
    "operation",
    "business_key",
    "idempotency_key",
    "dedupe_key",
]
_CHECKS: dict[str, Callable[[str, Any], None]] = {
    **dict.fromkeys(_TEXTS, _text),
    "run_id": _uuid,
    "causation": _uuid,
    "sequence": _sequence,
    "deadline": _instant,
    "not_before": _instant,
    "dedupe_window": _window,
}
