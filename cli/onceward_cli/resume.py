"""`onceward resume`: let what was paused go on."""

from __future__ import annotations

from onceward_cli.limit import AppName, Because, By
from onceward_cli.output import Output, OutputOption
from onceward_cli.pause import Destination, Lane, Tenant, Type, scope_of, switch
from onceward_consumer import controls


def resume(
    because: Because,
    lane: Lane = None,
    type_: Type = None,
    destination: Destination = None,
    tenant: Tenant = None,
    app_name: AppName = None,
    by: By = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let it go on, in order, within two seconds; what was parked meanwhile comes as fast as limits allow."""
    scope = scope_of(lane, type_, destination, tenant)
    switch("resume", controls.resume, scope, app_name, by, because, output)
