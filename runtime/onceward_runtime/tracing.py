"""Trace context from publish to handler and over retries (W3C Trace Context), through OpenTelemetry's API.

Without an OpenTelemetry SDK no spans are made, yet a received `traceparent` is passed on to follow-ups as it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

_PROPAGATOR = TraceContextTextMapPropagator()


def inject() -> tuple[str | None, str | None]:
    """Return the current trace as (traceparent, tracestate); (None, None) outside of any."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return carrier.get("traceparent"), carrier.get("tracestate")


@contextmanager
def attached(
    traceparent: str | None,
    tracestate: str | None = None,
    *,
    name: str = "process",
    attributes: Mapping[str, AttributeValue] | None = None,
    links: Sequence[tuple[str | None, str | None]] = (),
) -> Iterator[Span]:
    """Run the block in a span that is a child of the received trace; of `links` it is a successor only.

    What is not a valid `traceparent` is ignored: the span then begins a trace of its own.
    """
    parent = _received(traceparent, tracestate)
    found = [trace.get_current_span(_received(*link)).get_span_context() for link in links]
    tracer = trace.get_tracer("onceward")
    token = context.attach(parent)
    try:
        with tracer.start_as_current_span(
            name,
            kind=SpanKind.CONSUMER,
            attributes=dict(attributes or {}),
            links=[Link(each) for each in found if each.is_valid],
        ) as span:
            yield span
    finally:
        context.detach(token)


def trace_id() -> str | None:
    """Return the current trace's id in hex, for log lines."""
    current = trace.get_current_span().get_span_context()
    return trace.format_trace_id(current.trace_id) if current.is_valid else None


def _received(traceparent: str | None, tracestate: str | None) -> context.Context:
    carrier = {"traceparent": traceparent or "", "tracestate": tracestate or ""}
    return _PROPAGATOR.extract({name: value for name, value in carrier.items() if value}, context.Context())
