"""The department's handlers: what each command does, and under which rules.

onceward worker examples.hr.handlers:app
"""

from __future__ import annotations

import http.client
import json
import os
import threading
from urllib.parse import urlsplit

from examples.hr.commands import ApplyPackage, NotifyEmployee, RecomputeReport, RecordHeartbeat
from onceward import App, Context, Reject, Tick, exponential

app = App("hr", retry=exponential("500ms", "5s", attempts=20, within="6h"))


@app.handler(ApplyPackage, item_stage="changed", items=lambda command: map(str, command.employees))
def apply_package(command: ApplyPackage, ctx: Context) -> None:
    """Apply a package's changes and ask for one notification per employee, all in one transaction."""
    ctx.connection.execute(
        """
        with change as (
            select * from hr.requested_change where run_id = %(run)s and employee_id = any(%(employees)s)
        ), changed as (
            update hr.employee set position = change.position, department = change.department, manager_id = change.manager_id
            from change where employee.id = change.employee_id
        )
        insert into hr.change_log (run_id, employee_id) select run_id, employee_id from change
        """,
        {"run": ctx.run_id, "employees": list(command.employees)},
    )
    for employee in command.employees:
        event = f"change {ctx.run_id}"
        notification = NotifyEmployee(employee=employee, event=event)
        ctx.publish(notification, item=str(employee), idempotency_key=f"{employee} {event}")


@app.handler(
    NotifyEmployee, mode="external", concurrency=16, destination="mail", max_runtime="30s", item_stage="notified"
)
def notify_employee(command: NotifyEmployee, ctx: Context) -> None:
    """Send one mail. The idempotency key is the same at every attempt, so the gateway delivers once."""
    status, answer = _post("/mail", {"employee": command.employee, "event": command.event}, ctx.idempotency_key)
    if status == 422:
        raise Reject(answer)
    if status != 200:
        raise ConnectionError(f"The mail gateway answered {status}: {answer}")


@app.handler(RecomputeReport)
def recompute_report(command: RecomputeReport, ctx: Context) -> None:
    """Count heads per department, once the run is complete."""
    ctx.connection.execute(
        """
        insert into hr.report (run_id, name, business_date, headcount)
        select %s, %s, %s, jsonb_object_agg(department, heads)
        from (select department, count(*) as heads from hr.employee group by department) as counted
        """,
        (ctx.run_id, command.report, command.business_date),
    )


@app.handler(RecordHeartbeat, order="none")
def record_heartbeat(command: RecordHeartbeat, ctx: Context) -> None:
    """Leave a row for the tick."""
    ctx.connection.execute("insert into hr.heartbeat (tick) values (%s)", (command.tick,))


@app.schedule("every 2s")
def heartbeat(tick: Tick) -> RecordHeartbeat:
    """A sign of life that the demo counts."""
    return RecordHeartbeat(tick=tick.scheduled_at)


_gateways = threading.local()


def _post(path: str, body: dict[str, object], key: str) -> tuple[int, str]:
    """One request on the thread's own connection; a broken one is opened anew by the next attempt."""
    connection = getattr(_gateways, "connection", None)
    if connection is None:
        address = urlsplit(os.environ["HR_GATEWAY"])
        connection = _gateways.connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(body), {"Idempotency-Key": key, "Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, str(json.loads(response.read())["status"])
    except (OSError, http.client.HTTPException):
        connection.close()
        raise
