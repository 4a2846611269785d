"""A received trace reaches follow-ups, with an OpenTelemetry SDK and without one."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from onceward_runtime import tracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    provider, found = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(found))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return found


def test_without_an_sdk_it_is_passed_on_as_it_came() -> None:
    with tracing.attached(TRACEPARENT, "vendor=1"):
        assert tracing.inject() == (TRACEPARENT, "vendor=1")
        assert tracing.trace_id() == TRACE
    assert tracing.inject() == (None, None)
    assert tracing.trace_id() is None


@pytest.mark.parametrize("wrong", [None, "", "nonsense", f"00-{'0' * 32}-{SPAN}-01"])
def test_what_is_not_a_trace_is_ignored(wrong: str | None) -> None:
    with tracing.attached(wrong):
        assert tracing.inject() == (None, None)


def test_with_an_sdk_the_handler_runs_in_a_child_span(exporter: InMemorySpanExporter) -> None:
    with tracing.attached(TRACEPARENT, name="process hr.Apply", attributes={"onceward.attempt": 2}):
        traceparent, _ = tracing.inject()
    (span,) = exporter.get_finished_spans()
    assert span.name == "process hr.Apply"
    assert span.attributes == {"onceward.attempt": 2}
    assert span.parent is not None
    assert span.parent.span_id == int(SPAN, 16)
    assert span.context is not None
    assert traceparent == f"00-{TRACE}-{span.context.span_id:016x}-01"


def test_a_batch_is_linked_to_each_of_its_traces(exporter: InMemorySpanExporter) -> None:
    with tracing.attached(None, links=[(TRACEPARENT, None), (None, None)]):
        pass
    (span,) = exporter.get_finished_spans()
    assert [link.context.span_id for link in span.links] == [int(SPAN, 16)]
    assert span.parent is None


def test_a_handlers_exception_passes_and_ends_the_attachment() -> None:
    with pytest.raises(ValueError, match="broken"), tracing.attached(TRACEPARENT):
        raise ValueError("broken")
    assert tracing.trace_id() is None
