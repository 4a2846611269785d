"""One trace from the publisher's span to the handler, over a retry, and on to the follow-up command."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from onceward_consumer.app import App
from onceward_consumer.context import Context
from onceward_consumer.failures import Retry
from onceward_consumer.policy import fixed
from tests.support.commands import Increment, Settle
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
SPAN = NonRecordingSpan(SpanContext(TRACE, 0xF067AA0BA902B7, is_remote=False, trace_flags=TraceFlags(1)))


def test_attempts_and_follow_ups_belong_to_the_publishers_trace(
    services: Services, database: str, topic_prefix: str
) -> None:
    app = App(app_name(topic_prefix))
    seen: list[tuple[str, int, str]] = []

    def note(ctx: Context) -> None:
        seen.append((ctx.envelope.type, ctx.attempt, (ctx.envelope.traceparent or "").split("-")[1]))

    @app.handler(Increment, lane=f"{topic_prefix}counter", retry=fixed("300ms", attempts=2))
    def increment(command: Increment, ctx: Context) -> None:
        note(ctx)
        if ctx.attempt == 1:
            raise Retry("not_yet")
        ctx.publish(Settle(batch=1))

    @app.handler(Settle, lane=f"{topic_prefix}settle")
    def settle(command: Settle, ctx: Context) -> None:
        note(ctx)

    group = group_of(app, services, database)
    group.relane()
    with trace.use_span(SPAN):
        group.publish([Increment(counter="a")])
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 2}, "the command and its follow-up")
    wanted = f"{TRACE:032x}"
    assert sorted(set(seen)) == [
        (Increment.SCHEMA.name, 1, wanted),
        (Increment.SCHEMA.name, 2, wanted),
        (Settle.SCHEMA.name, 1, wanted),
    ]
