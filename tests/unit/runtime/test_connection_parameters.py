"""What a connection is opened with, and what psycopg's errors become."""

from __future__ import annotations

from datetime import timedelta

import psycopg
import pytest

from onceward_runtime.postgres import SessionLimits, database_error, parameters_of
from onceward_schemas.errors import DatabaseError

TEN = timedelta(seconds=10)


def test_the_name_keepalives_and_limits_are_set() -> None:
    limits = SessionLimits(lock_timeout=timedelta(seconds=2), transaction_timeout=timedelta(minutes=1))
    found = parameters_of("postgresql://u@h/d", "onceward worker", limits, TEN)
    assert found["application_name"] == "onceward worker"
    assert found["keepalives_idle"] == 10
    assert found["connect_timeout"] == 10
    assert found["options"] == "-c lock_timeout=2000ms -c transaction_timeout=60000ms"


def test_what_the_address_says_wins() -> None:
    limits = SessionLimits(lock_timeout=timedelta(seconds=2))
    found = parameters_of("postgresql://h/d?connect_timeout=3&options=-c%20lock_timeout%3D9s", "x", limits, TEN)
    assert found["connect_timeout"] == "3"
    assert found["options"].endswith("-c lock_timeout=9s")


def test_an_address_as_sqlalchemy_writes_it_is_taken() -> None:
    assert parameters_of("postgresql+psycopg://u@h/d", "x", SessionLimits(), TEN)["dbname"] == "d"


def test_an_unreadable_address_is_not_quoted() -> None:
    with pytest.raises(DatabaseError) as caught:
        parameters_of("postgresql://u:s3cret@h/d?nonsense=1", "x", SessionLimits(), TEN)
    assert "s3cret" not in str(caught.value)
    assert "ONCEWARD_DATABASE_URL" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ('connection failed: FATAL:  password authentication failed for user "u"', "password"),
        ("connection failed: fe_sendauth: no password supplied", "password"),
        ('connection failed: FATAL:  database "d" does not exist', "create it"),
        ('connection failed: FATAL:  role "u" does not exist', "role"),
        ("connection failed: Connection refused\n\tIs the server running?", "Start the server"),
        ("connection timeout expired", "firewall"),
        ("connection failed: FATAL:  sorry, too many clients already", "max_connections"),
        ("failed to resolve host 'h': [Errno -2] Name or service not known", "host"),
        ('connection failed: FATAL:  no pg_hba.conf entry for host "1.2.3.4"', "pg_hba.conf"),
        ("connection failed: server does not support SSL, but SSL was required", "sslmode"),
        ("connection failed: FATAL:  the database system is starting up", "Wait"),
    ],
)
def test_a_failed_connection_has_a_remedy_by_cause(text: str, remedy: str) -> None:
    found = database_error(psycopg.OperationalError(text))
    assert found is not None
    assert found.remedy is not None
    assert remedy in found.remedy
    assert "Is the server" not in found.message


def test_a_missing_table_asks_for_the_migrations() -> None:
    found = database_error(psycopg.errors.UndefinedTable('relation "onceward.outbox" does not exist'))
    assert found is not None
    assert found.remedy == "Run `onceward db apply`."


def test_a_missing_table_of_the_callers_own_is_left_alone() -> None:
    assert database_error(psycopg.errors.UndefinedTable('relation "employee" does not exist')) is None


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.DeadlockDetected("deadlock detected"),
        psycopg.errors.SerializationFailure("could not serialize"),
        psycopg.errors.LockNotAvailable("lock timeout"),
        psycopg.errors.QueryCanceled("statement timeout"),
        psycopg.errors.UniqueViolation("duplicate key"),
    ],
)
def test_errors_of_a_statement_stay_what_they_are(error: psycopg.Error) -> None:
    assert database_error(error) is None
