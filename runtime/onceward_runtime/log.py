"""Structured logs: one line an event of events.py, for people or as JSON. Never a payload, never a whole key."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TextIO
from uuid import UUID

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from onceward_runtime import tracing
from onceward_runtime.events import Event
from onceward_runtime.settings import Settings

_LOGGER = structlog.stdlib.get_logger("onceward")
_LONGEST = 500
_CHATTY = ("httpx", "httpx2", "httpcore", "httpcore2", "onceward.kafka")
"""Libraries that log each request, or librdkafka what it does, at info."""


def configure(settings: Settings, stream: TextIO | None = None) -> None:
    """Set up logging for this process, the libraries' lines and librdkafka's included. Writes to stderr by default."""
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _add_trace,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            _place_arguments,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    target = stream or sys.stderr
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(settings, target)],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    quiet = max(root.level, logging.WARNING) if root.level > logging.DEBUG else logging.NOTSET
    for name in _CHATTY:
        logging.getLogger(name).setLevel(quiet)


def emit(event: Event, **fields: Any) -> None:
    """Log one event. An exception given as `error` is reduced to its type and first line; None is left out.

    Raises: TypeError for a field that events.py does not list.
    """
    unknown = fields.keys() - set(event.fields)
    if unknown:
        raise TypeError(f"{event.name} has no field {', '.join(sorted(unknown))}; add it in onceward_runtime/events.py")
    shown = {name: _shown(name, value) for name, value in fields.items() if value is not None}
    getattr(_LOGGER, event.level)(event.name, **shown)


def key_hash(key: str | bytes) -> str:
    """Return the twelve hex digits that stand for a key in logs: equal keys look equal, and say nothing else."""
    return hashlib.sha256(key.encode() if isinstance(key, str) else key).hexdigest()[:12]


def _shown(name: str, value: Any) -> Any:
    if name == "key":
        return key_hash(value if isinstance(value, bytes) else str(value))
    if isinstance(value, BaseException):
        lines = str(value).strip().splitlines()  # what follows the first line may quote a row
        return f"{type(value).__name__}: {lines[0] if lines else ''}".rstrip(": ")[:_LONGEST]
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, str | UUID):
        return str(value)[:_LONGEST]
    if isinstance(value, list | tuple | set | frozenset):
        return [_shown("", each) for each in _first(value)]
    return f"<{type(value).__name__}>"  # whatever it is, it might hold a payload


def _first(values: Iterable[Any]) -> list[Any]:
    return list(values)[:100]


def _add_trace(_logger: WrappedLogger, _method: str, line: EventDict) -> EventDict:
    if (found := tracing.trace_id()) is not None:
        line.setdefault("trace_id", found)
    return line


def _place_arguments(logger: WrappedLogger, method: str, line: EventDict) -> EventDict:
    """Fill in %-placeholders; as in `logging`, arguments that do not fit them are no reason for the caller to fail."""
    arguments = line.get("positional_args")
    try:
        return structlog.stdlib.PositionalArgumentsFormatter()(logger, method, line)
    except Exception:  # foreign code runs here
        line["positional_args"] = [type(each).__name__ for each in arguments or ()]
        return line


def _rendering(settings: Settings, stream: TextIO) -> list[Processor]:
    if settings.log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    # a traceback with the values of variables would show payloads
    return [structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback)]
