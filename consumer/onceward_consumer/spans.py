"""The span around a handler's call: only where somebody collects spans, since it costs more than many handlers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from opentelemetry import trace

from onceward_consumer.items import Engine, Item
from onceward_runtime.tracing import attached

NO_SPAN: Final = nullcontext()


def collecting() -> bool:
    """Whether somebody collects spans. Finding out reads the environment, so it is asked once for many commands."""
    return type(trace.get_tracer_provider()) is not trace.ProxyTracerProvider


def span(item: Item, engine: Engine, batch: Sequence[Item] = ()) -> AbstractContextManager[Any]:
    """A span that continues the publisher's trace, or nothing where no SDK is set up.

    That of a batch begins a trace of its own, with a link to each command's.
    """
    envelope = item.envelope
    if envelope is None or not collecting():
        return NO_SPAN
    attributes: dict[str, str | int] = {
        "messaging.system": "kafka",
        "messaging.destination.name": item.delivery.topic,
        "messaging.consumer.group.name": engine.group,
    }
    if len(batch) > 1:
        attributes["messaging.batch.message_count"] = len(batch)
        links = [(e.traceparent, e.context.tracestate) for each in batch if (e := each.envelope) is not None]
        return attached(None, name=f"process {envelope.type}", attributes=attributes, links=links)
    attributes |= {"onceward.command_id": str(item.id), "onceward.attempt": item.attempt}
    return attached(
        envelope.traceparent, envelope.context.tracestate, name=f"process {envelope.type}", attributes=attributes
    )
