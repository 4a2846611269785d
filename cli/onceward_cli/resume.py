"""`onceward resume`: let what was paused go on."""

from __future__ import annotations

from onceward_cli.limit import AppName, Because, By, print_one
from onceward_cli.output import Output, OutputOption
from onceward_cli.pause import Destination, Lane, Tenant, Type, scope_of
from onceward_cli.people import user
from onceward_consumer import controls
from onceward_runtime import postgres, settings
from onceward_schemas.errors import LimitError


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
    with postgres.connect(settings.load(), application_name="onceward resume", autocommit=True) as connection:
        group = controls.group_of(connection, app_name)
        if not controls.resume(connection, group, scope, by=by or user(), because=because):
            raise LimitError(f"{scope} of {group} is not paused.", remedy="See `onceward limit list`.")
        print_one(connection, group, scope, output)
