"""The command line with a wrong password, an unknown database, servers that are not there, tables or topics that are missing, a
server that cannot stream, a misspelt setting, or an application that is none.

Promised: exit code 1, a message that says what is wrong and what to do, no trace, and never a secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onceward_consumer.app import App
from onceward_consumer.policy import fixed
from onceward_devstack.ports import free_ports
from onceward_devstack.postgres import Postgres, remove_outside_data
from onceward_runtime import migrate
from tests.support import onceward_command as cli
from tests.support.commands import Increment
from tests.support.consumers import app_name, eventually, group_of
from tests.support.relay import make_topic, outbox_rows, publish, read, slot_name
from tests.support.services import Services

SECRET = "hunter2-of-nobody"


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dsn of a server that asks `service` for its password and has wal_level=replica."""
    home: Path = tmp_path_factory.mktemp("postgres")
    server = Postgres(home, port=free_ports(1)[0], settings={"fsync": "off", "wal_level": "replica"})
    try:
        server.start()
        with psycopg.connect(server.dsn_of("postgres"), autocommit=True) as connection:
            connection.execute("create role service login password 'right'")
            connection.execute("create database service owner service")
            connection.execute("create database empty owner service")
            [path] = connection.execute("select current_setting('hba_file')").fetchone() or ("",)
            hba = Path(path)
            hba.write_text("host all service 127.0.0.1/32 scram-sha-256\n" + hba.read_text())
            connection.execute("select pg_reload_conf()")
        dsn = server.dsn_of("service").replace("//postgres@", "//service:right@")
        migrate.apply(dsn)
        yield dsn
    finally:
        server.stop()
        remove_outside_data(home)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return cli.write_application(tmp_path, "shop", "shop.lane")


EVERY_VERB = (
    "db check",
    "relay",
    "worker shop:app",
    "scheduler shop:app",
    "dlq list",
    "outbox parked list",
    "runs list",
)


def test_a_wrong_password_is_named_and_not_shown(services: Services, strict: str, target: str, tmp_path: Path) -> None:
    settings = cli.environment(services, strict.replace(":right@", f":{SECRET}@"))
    for ended in cli.run_all(tmp_path, settings, *EVERY_VERB):
        ended.check_refusal("password authentication failed", "Correct the password in ONCEWARD_DATABASE_URL.")
        assert SECRET not in ended.err + ended.out


def test_an_unknown_database_is_named(services: Services, strict: str, target: str, tmp_path: Path) -> None:
    settings = cli.environment(services, make_conninfo(strict, dbname="nowhere"))
    for ended in cli.run_all(tmp_path, settings, "db check", "relay", "worker shop:app"):
        ended.check_refusal('"nowhere" does not exist', "Correct the database in ONCEWARD_DATABASE_URL, or create it.")


def test_a_database_that_is_not_there_is_named(services: Services, target: str, tmp_path: Path) -> None:
    [port] = free_ports(1)
    settings = cli.environment(services, f"postgresql://service:{SECRET}@127.0.0.1:{port}/service")
    for ended in cli.run_all(tmp_path, settings, "db apply", "relay", "worker shop:app", "dlq list"):
        ended.check_refusal("refused", "Start the server, or correct host and port in ONCEWARD_DATABASE_URL.")
        assert SECRET not in ended.err


def test_an_address_that_cannot_be_read_is_not_quoted(services: Services, target: str, tmp_path: Path) -> None:
    settings = cli.environment(services, f"postgresql:/service {SECRET}@host")
    for ended in cli.run_all(tmp_path, settings, "db check", "relay"):
        ended.check_refusal("address cannot be read", "Write ONCEWARD_DATABASE_URL as")
        assert SECRET not in ended.err


def test_missing_tables_name_the_command_that_makes_them(
    services: Services, strict: str, target: str, tmp_path: Path
) -> None:
    settings = cli.environment(services, make_conninfo(strict, dbname="empty"))
    verbs = [verb for verb in EVERY_VERB if verb != "db check"]
    for ended in cli.run_all(tmp_path, settings, *verbs, "schedules list"):
        ended.check_refusal("`onceward db apply`")


def test_a_server_that_cannot_stream_is_refused_or_polled(
    services: Services, strict: str, topic_prefix: str, tmp_path: Path
) -> None:
    settings = cli.environment(services, strict)
    cli.run(tmp_path, settings, "relay", "--mode", "stream").check_refusal(
        "wal_level=replica", "Set wal_level=logical", "--mode poll"
    )
    topic = make_topic(services.bootstrap, topic_prefix + "polled")
    with cli.running(tmp_path, settings, "relay") as relay:
        eventually(lambda: relay.said("relay.polling"), "word on polling")
        publish(strict, topic, ("a", b"1"), ("a", b"2"))
        eventually(lambda: not outbox_rows(strict), "empty outbox")
        assert relay.said("wal_level=replica")
    assert [record.value for record in read(services.bootstrap, topic, 2)] == [b"1", b"2"]


def test_a_role_that_may_not_replicate_is_told_the_statement(services: Services, database: str, tmp_path: Path) -> None:
    role = slot_name(database)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"create role {role} login password 'x'")
        connection.execute(f"grant usage on schema onceward to {role}")
        connection.execute(f"grant all on all tables in schema onceward to {role}")
        try:
            settings = cli.environment(services, make_conninfo(database, user=role, password="x"))
            refused = cli.run(tmp_path, settings, "relay", "--mode", "stream")
            refused.check_refusal("may not replicate", f'ALTER ROLE "{role}" REPLICATION', "--mode poll")
        finally:
            connection.execute(f"drop owned by {role}")
            connection.execute(f"drop role {role}")


def test_a_misspelt_or_absurd_setting_is_named(services: Services, database: str, target: str, tmp_path: Path) -> None:
    spelt = {
        "kafka_bootstrap": ("x", "ONCEWARD_KAFKA_BOOTSTRAP is not a setting.", "ONCEWARD_KAFKA_BOOTSTRAP_SERVERS"),
        "qqqq": ("x", "ONCEWARD_QQQQ is not a setting.", "docs/settings.md"),
        "http_port": ("eighty", "ONCEWARD_HTTP_PORT", "Correct the variable"),
        "slot": ("Not A Slot", "ONCEWARD_SLOT", "Correct the variable"),
        "kafka_security_protocol": ("SASL_SSL", "no mechanism is given", "ONCEWARD_KAFKA_SASL_MECHANISM"),
        "drain_timeout": ("-5", "ONCEWARD_DRAIN_TIMEOUT", "Correct the variable"),
    }
    for name, (value, *phrases) in spelt.items():
        [ended] = cli.run_all(tmp_path, cli.environment(services, database, **{name: value}), "worker shop:app")
        ended.check_refusal(*phrases)


def test_an_application_that_is_none_is_named(services: Services, database: str, target: str, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "wrong.py").write_text("app = 5\n")
    said = {
        "worker shop:ap": "Did you mean shop:app?",
        "worker sho:app": "Did you mean shop?",
        "worker shop:app:more": "Write module:attribute",
        "worker ../shop:app": "Write module:attribute",
        "worker shop.py": "Did you mean shop:app?",
        "worker leaves:app": "leaves cannot be imported: SystemExit",
        "worker broken:app": "broken cannot be imported: SyntaxError",
        "worker wrong:app": "wrong:app is a int, not an App.",
    }
    settings = cli.environment(services, database)
    for ended, phrase in zip(cli.run_all(tmp_path, settings, *said), said.values(), strict=True):
        ended.check_refusal(phrase)


def test_missing_topics_name_the_command_that_makes_them(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    target = cli.write_application(tmp_path, app_name(topic_prefix), f"{topic_prefix}lane")
    cli.run(tmp_path, cli.environment(services, database), "worker", target).check_refusal(
        f"{topic_prefix}lane", "onceward topics apply"
    )


def test_a_broker_or_registry_that_is_not_there_is_named(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    app = App(f"{topic_prefix}shop", retry=fixed("300ms", attempts=2))
    app.handler(Increment, lane=f"{topic_prefix}lane")(lambda command, ctx: None)
    group_of(app, services, database)
    target = cli.write_application(tmp_path, f"{topic_prefix}shop", f"{topic_prefix}lane")
    [port] = free_ports(1)
    broken = cli.environment(services, database, kafka_bootstrap_servers=f"127.0.0.1:{port}")
    for ended in cli.run_all(tmp_path, broken, f"worker {target}", f"topics plan {target}"):
        ended.check_refusal("Start the broker, or correct ONCEWARD_KAFKA_BOOTSTRAP_SERVERS.")
    silent = cli.environment(services, database, registry_url=f"http://user:{SECRET}@127.0.0.1:{port}")
    ended = cli.run(tmp_path, silent, "worker", target)
    ended.check_refusal("The schema registry at", "Check ONCEWARD_REGISTRY_URL, and that the registry runs.")
    assert SECRET not in ended.err
