"""What a session is told at its start holds on the server, and errors of the server name a remedy."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from onceward_runtime import kafka, postgres
from onceward_runtime.settings import Settings
from onceward_schemas.errors import BrokerError, DatabaseError
from tests.support.services import Services

LIMITS = postgres.SessionLimits(
    lock_timeout=timedelta(milliseconds=50),
    statement_timeout=timedelta(seconds=9),
    transaction_timeout=timedelta(seconds=8),
    idle_in_transaction_session_timeout=timedelta(seconds=7),
    client_connection_check_interval=timedelta(seconds=1),
)


def test_a_session_has_its_name_and_limits(database: str) -> None:
    with postgres.connect(database, application_name="onceward test", limits=LIMITS) as connection:
        shown = {
            name: connection.execute("select current_setting(%s)", (name,)).fetchone()
            for name in (
                "application_name",
                "lock_timeout",
                "statement_timeout",
                "transaction_timeout",
                "idle_in_transaction_session_timeout",
            )
        }
    assert shown == {
        "application_name": ("onceward test",),
        "lock_timeout": ("50ms",),
        "statement_timeout": ("9s",),
        "transaction_timeout": ("8s",),
        "idle_in_transaction_session_timeout": ("7s",),
    }


def test_a_lock_time_out_is_left_to_the_caller(database: str) -> None:
    with postgres.connect(database, application_name="a") as holder, holder.transaction():
        holder.execute("lock table onceward.outbox")
        with (
            pytest.raises(psycopg.errors.LockNotAvailable),
            postgres.translated(),
            postgres.connect(database, application_name="b", limits=LIMITS) as other,
        ):
            other.execute("select from onceward.outbox")


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"dbname": "no_such_database"}, "Correct the database"),
        ({"user": "no_such_role"}, "Correct the role"),
        ({"port": 1}, "Start the server"),
        ({"sslmode": "require"}, "sslmode"),
    ],
)
def test_a_refused_connection_says_why(database: str, change: dict[str, str], remedy: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        postgres.connect(make_conninfo(database, **change), application_name="x")
    assert remedy in (caught.value.remedy or "")


def test_missing_tables_ask_for_the_migrations(services: Services) -> None:
    empty = make_conninfo(services.dsn, dbname="template1")
    with (
        pytest.raises(DatabaseError, match="onceward db apply"),
        postgres.translated(),
        postgres.connect(empty, application_name="x") as connection,
    ):
        connection.execute("select from onceward.outbox")


def test_the_topics_of_a_cluster_are_listed(services: Services) -> None:
    given = Settings(kafka_bootstrap_servers=services.bootstrap)
    kafka.wait(given)
    assert not any(name.startswith("__") for name in kafka.topics(given))


def test_a_listener_of_another_protocol_is_named(services: Services) -> None:
    given = Settings(
        kafka_bootstrap_servers=services.bootstrap,
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_sasl_mechanism="PLAIN",
        kafka_sasl_username="u",
        kafka_sasl_password="s3cret",  # type: ignore[arg-type]
    )
    with pytest.raises(BrokerError, match="ONCEWARD_KAFKA_SASL") as caught:
        kafka.check(given, timeout=timedelta(seconds=3))
    assert "s3cret" not in str(caught.value)
