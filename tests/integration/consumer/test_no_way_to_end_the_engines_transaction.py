"""By whatever method a handler tries to end the transaction that its effect shares with the ledger, it is refused by name."""

from __future__ import annotations

from typing import Any

from onceward_consumer.app import App
from tests.support.commands import Increment
from tests.support.consumers import Forwarder, app_name, eventually, group_of
from tests.support.services import Services

INSERT = "insert into effect (amount) values (%s)"
WAYS = 8


def by(way: int, connection: Any) -> None:
    match way:
        case 0:
            connection.execute("commit")
        case 1:
            connection.cursor().execute("-- now\nCOMMIT")
        case 2:
            connection.cursor().executemany("commit", [()])
        case 3:
            with connection.cursor().copy("rollback"):
                pass
        case 4:
            list(connection.cursor().stream("commit and chain"))
        case 5:
            connection.execute(b"end")
        case 6:
            connection.commit()
        case 7:
            with connection:
                pass


async def by_async(way: int, connection: Any) -> None:
    match way:
        case 0:
            await connection.execute("commit")
        case 1:
            await connection.cursor().execute("-- now\nCOMMIT")
        case 2:
            await connection.cursor().executemany("commit", [()])
        case 3:
            async with connection.cursor().copy("rollback"):
                pass
        case 4:
            async for _ in connection.cursor().stream("commit and chain"):
                pass
        case 5:
            await connection.execute(b"end")
        case 6:
            await connection.commit()
        case 7:
            async with connection:
                pass


def check(app: App, services: Services, database: str) -> None:
    group = group_of(app, services, database)
    group.query("create table effect (amount int)")
    group.publish(Increment(counter=f"c{n}", amount=n) for n in range(WAYS + 3))
    with Forwarder(database, services.bootstrap), group.running():
        eventually(lambda: group.states() == {"done": 3, "dead": WAYS}, "end")
    assert group.query("select amount from effect order by 1") == [(WAYS,), (WAYS + 1,), (WAYS + 2,)]
    assert group.query("select distinct reason from onceward.dead_letters") == [("transaction_misuse",)]


def test_in_a_plain_handler(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    def increment(command: Increment, ctx: Any) -> None:
        ctx.connection.execute(INSERT, (command.amount,))
        by(command.amount, ctx.connection)

    check(app, services, database)


def test_in_an_asynchronous_handler(services: Services, database: str, topic_prefix: str) -> None:
    app = App(app_name(topic_prefix))

    @app.handler(Increment, lane=f"{topic_prefix}counter")
    async def increment(command: Increment, ctx: Any) -> None:
        await ctx.connection.execute(INSERT, (command.amount,))
        await by_async(command.amount, ctx.connection)

    check(app, services, database)
