"""The public door: what a service imports. Names are loaded when first used, so a publisher needs no extra."""

from __future__ import annotations

from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onceward_consumer.app import App
    from onceward_consumer.batch_context import AsyncBatchContext, BatchContext
    from onceward_consumer.breakers import Breaker
    from onceward_consumer.context import AsyncContext, Context
    from onceward_consumer.failures import Discard, Reject, Retry
    from onceward_consumer.guard import Ceiling
    from onceward_consumer.policy import RetryPolicy, exponential, fixed, never
    from onceward_consumer.runs import Runs, StartedRun
    from onceward_producer.default import outbox
    from onceward_producer.outbox import Outbox
    from onceward_producer.work import Published, PublishedMany
    from onceward_runtime.settings import Settings
    from onceward_runtime.settings import load as load_settings
    from onceward_scheduler.ticks import Tick
    from onceward_schemas import errors
    from onceward_schemas.command import Command
    from onceward_schemas.envelope import Envelope
    from onceward_schemas.errors import OncewardError

__all__ = [
    "App",
    "AsyncBatchContext",
    "AsyncContext",
    "BatchContext",
    "Breaker",
    "Ceiling",
    "Command",
    "Context",
    "Discard",
    "Envelope",
    "OncewardError",
    "Outbox",
    "Published",
    "PublishedMany",
    "Reject",
    "Retry",
    "RetryPolicy",
    "Runs",
    "Settings",
    "StartedRun",
    "Tick",
    "errors",
    "exponential",
    "fixed",
    "load_settings",
    "never",
    "outbox",
]

_HOMES = {
    "App": "onceward_consumer.app:App",
    "AsyncBatchContext": "onceward_consumer.batch_context:AsyncBatchContext",
    "AsyncContext": "onceward_consumer.context:AsyncContext",
    "Breaker": "onceward_consumer.breakers:Breaker",
    "BatchContext": "onceward_consumer.batch_context:BatchContext",
    "Ceiling": "onceward_consumer.guard:Ceiling",
    "Command": "onceward_schemas.command:Command",
    "Context": "onceward_consumer.context:Context",
    "Discard": "onceward_consumer.failures:Discard",
    "Envelope": "onceward_schemas.envelope:Envelope",
    "OncewardError": "onceward_schemas.errors:OncewardError",
    "Outbox": "onceward_producer.outbox:Outbox",
    "Published": "onceward_producer.work:Published",
    "PublishedMany": "onceward_producer.work:PublishedMany",
    "Reject": "onceward_consumer.failures:Reject",
    "Retry": "onceward_consumer.failures:Retry",
    "RetryPolicy": "onceward_consumer.policy:RetryPolicy",
    "Runs": "onceward_consumer.runs:Runs",
    "Settings": "onceward_runtime.settings:Settings",
    "StartedRun": "onceward_consumer.runs:StartedRun",
    "Tick": "onceward_scheduler.ticks:Tick",
    "errors": "onceward_schemas.errors:",
    "exponential": "onceward_consumer.policy:exponential",
    "fixed": "onceward_consumer.policy:fixed",
    "load_settings": "onceward_runtime.settings:load",
    "never": "onceward_consumer.policy:never",
    "outbox": "onceward_producer.default:outbox",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return resolve_name(_HOMES[name])


def __dir__() -> list[str]:
    return __all__
