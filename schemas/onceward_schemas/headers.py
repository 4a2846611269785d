"""Names of the record headers, which are also the outbox columns of the same names, in the order they are emitted.

The order is part of the contract with Debezium's Outbox Event Router: `id` first, then the placed columns.
"""

from __future__ import annotations

from typing import Final

ID: Final = "id"
TYPE: Final = "type"
VERSION: Final = "version"
ATTEMPT: Final = "attempt"
TENANT: Final = "tenant"
RUN_ID: Final = "run_id"
TRACEPARENT: Final = "traceparent"
CONTEXT: Final = "context"

PLACED: Final = (TYPE, VERSION, ATTEMPT, TENANT, RUN_ID, TRACEPARENT, CONTEXT)
"""The outbox columns that become headers, in order."""

ALL: Final = (ID, *PLACED)
