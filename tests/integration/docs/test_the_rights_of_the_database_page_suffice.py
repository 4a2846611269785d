"""The rights that docs/database.md lists suffice: a command passes from the service's role over the relay's to the worker's."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo
from pydantic import SecretStr

from onceward_consumer.app import App
from onceward_consumer.context import Context
from onceward_consumer.failures import Reject
from onceward_consumer.housekeeping import keep_house
from onceward_consumer.policy import fixed
from onceward_consumer.run_keeper import check_runs
from onceward_consumer.runs import Runs
from onceward_outbox_relay.relay import Relay, RelayOptions
from onceward_producer.outbox import Outbox
from tests.support.commands import Increment
from tests.support.consumers import Group, app_name, eventually, group_of
from tests.support.services import Services

PAGE = Path(__file__).parents[3] / "docs" / "database.md"
ROLES = ("shop_service", "shop_worker", "shop_relay")


@pytest.fixture
def roles(database: str) -> Iterator[dict[str, str]]:
    """Addresses of the page's roles, each under a name of this test's."""
    found = re.search(r'^```sql title="rights"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    names = {role: f"{role}_{uuid.uuid4().hex[:8]}" for role in ROLES}
    statements = re.sub("|".join(ROLES), lambda match: names[match[0]], found[1])
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(statements)
        connection.execute(f"create table effect (counter text); grant insert on effect to {names['shop_worker']}")
    yield {role: conninfo.make_conninfo(database, user=name, password="change me") for role, name in names.items()}
    with psycopg.connect(database, autocommit=True) as connection:
        for name in names.values():
            connection.execute(f"drop owned by {name}")
            connection.execute(f"drop role {name}")


def build(services: Services, dsn: str, prefix: str) -> Group:
    app = App(app_name(prefix))

    @app.handler(Increment, lane=f"{prefix}counter", retry=fixed("300ms", attempts=2), item_stage="items")
    def increment(command: Increment, ctx: Context) -> None:
        if command.counter == "bad":
            raise Reject("bad") if ctx.attempt > 1 else ConnectionError("once")
        ctx.connection.execute("insert into effect values (%s)", (command.counter,))

    return group_of(app, services, dsn)


def test_the_rights_suffice(services: Services, database: str, topic_prefix: str, roles: dict[str, str]) -> None:
    group = build(services, database, topic_prefix)
    lane = group.app.lanes[0]
    group.query(
        f"create function lane() returns trigger language plpgsql as $$ begin"
        f" if new.topic not like '{topic_prefix}%%' then new.topic := '{lane}'; end if; return new; end $$"
    )
    group.query("create trigger lane before insert on onceward.outbox for each row execute function lane()")
    outbox = Outbox(group.codec)
    with psycopg.connect(roles["shop_service"]) as connection:
        run = Runs(group.codec).start(
            connection, "rights", expected=2, business_key="once", follow_up=Increment(counter="c")
        )
        outbox.publish(connection, Increment(counter="a"), dedupe_key="a", run_id=run.id, item="a")
        assert outbox.publish(connection, Increment(counter="a"), dedupe_key="a").duplicate
        outbox.publish(connection, Increment(counter="bad"), run_id=run.id, item="bad")
        outbox.publish_many(connection, [Increment(counter="m") for _ in range(3)])
        later = outbox.publish(connection, Increment(counter="l"), not_before=datetime.now(UTC) + timedelta(days=1))
        assert outbox.cancel_delayed(connection, later.id)
    as_worker = replace(
        group, settings=group.settings.model_copy(update={"database_url": SecretStr(roles["shop_worker"])})
    )
    slot = f"rights_{uuid.uuid4().hex[:12]}"
    as_relay = group.settings.model_copy(update={"database_url": SecretStr(roles["shop_relay"]), "slot": slot})
    relay = Relay(as_relay, RelayOptions(mode="stream"))
    relay.start()
    try:
        with as_worker.running():
            eventually(lambda: group.states() == {"done": 4, "dead": 1}, "settled commands")
            with psycopg.connect(roles["shop_worker"], autocommit=True) as connection:
                eventually(lambda: check_runs(connection).completed, "completed run")
            eventually(lambda: group.states() == {"done": 5, "dead": 1}, "follow-up")
        eventually(lambda: not group.count("select count(*) from onceward.outbox"), "empty outbox")
    finally:
        relay.stop()
    assert sorted(group.query("select counter from effect")) == [("a",), ("c",), ("m",), ("m",), ("m",)]


def test_a_worker_keeps_the_ledger_although_it_does_not_own_it(database: str, roles: dict[str, str]) -> None:
    with psycopg.connect(database, autocommit=True) as owner:
        [(week,)] = owner.execute("select max(relname) from pg_class where relname like 'ledger_2%%w__'").fetchall()
        owner.execute(f"drop table onceward.{week}")
        owner.execute(
            "create table onceward.ledger_old partition of onceward.ledger for values"
            " from ('01000000-0000-0000-0000-000000000000') to ('01100000-0000-0000-0000-000000000000')"
        )
    with psycopg.connect(roles["shop_worker"], autocommit=True) as connection:
        kept = keep_house(connection)
        assert kept is not None
        assert (kept.prepared, kept.dropped) == (1, 1)
    with (
        psycopg.connect(roles["shop_service"], autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("select onceward.drop_ledger_week('1 day')")
