"""What is worth another attempt is tried again, what can never succeed is not, and a handler has the last word."""

from __future__ import annotations

import email.message
import ssl
import urllib.error
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import sqlalchemy.exc
from psycopg import errors as pg

from onceward_consumer.context import HandlerContext
from onceward_consumer.failures import Discard, Permanent, Reject, Retry, Rules, Transient, classify
from onceward_consumer.outcomes import Discarded
from onceward_schemas import errors
from tests.unit.consumer.test_groups_find_the_culprit import group

NOW = datetime(2026, 11, 30, 7, tzinfo=UTC)


class ClientError(Exception):
    """As HTTP clients raise them: with a response, or with the status itself."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.__dict__.update(attributes)


def response(status: int, **headers: str) -> ClientError:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ClientError(response=SimpleNamespace(status_code=status, headers=named))


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (TimeoutError(), Transient("timeout")),
        (ConnectionResetError(), Transient("connection")),
        (OSError("no route"), Transient("connection")),
        (ssl.SSLCertVerificationError(), Transient("tls")),
        (ValueError("x"), Permanent("value_error")),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, ""), Permanent("unicode_decode_error")),
        (KeyError("x"), Permanent("key_error")),
        (ZeroDivisionError(), Permanent("zero_division_error")),
        (FileNotFoundError(), Permanent("file_not_found_error")),
        (AssertionError(), Permanent("assertion_error")),
        (ClientError(), Transient("client_error")),
    ],
)
def test_exception_classes(error: BaseException, verdict: Any) -> None:
    assert classify(error) == verdict


_MENDED = (
    errors.RegistryUnavailableError,
    errors.SchemaMissingError,
    errors.DatabaseError,
    errors.BrokerError,
    errors.BrokerUnavailableError,
)


@pytest.mark.parametrize("kind", _MENDED)
def test_onceward_errors_that_somebody_can_mend_are_tried_again(kind: type[errors.OncewardError]) -> None:
    error = kind("It is away.")
    error.__cause__ = ValueError("what it was answered with")
    assert isinstance(classify(error), Transient)


_WRONG = sorted(
    (
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.OncewardError) and kind not in _MENDED
    ),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", _WRONG)
def test_onceward_errors_of_the_program_are_not(kind: type[errors.OncewardError]) -> None:
    error = kind("It is wrong.", reason="bad") if kind is errors.UndecodableError else kind("It is wrong.")
    error.__cause__ = TimeoutError()
    assert isinstance(classify(error), Permanent)


def test_the_missing_transaction_of_an_external_handler_is_not() -> None:
    [item], engine = group("a")
    with pytest.raises(errors.AppError) as refused:
        _ = HandlerContext(item, engine, None).connection
    assert classify(refused.value) == Permanent("app_error")


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_a_status_that_passes_is_tried_again(status: int) -> None:
    for error in (response(status), ClientError(status=status), ClientError(status_code=status)):
        assert classify(error) == Transient(f"http_{status}")


@pytest.mark.parametrize("status", [400, 401, 404, 409, 410, 422])
def test_a_status_that_stays_is_not(status: int) -> None:
    assert classify(response(status)) == Permanent(f"http_{status}")


def test_a_status_counts_more_than_the_class_of_the_exception() -> None:
    headers = email.message.Message()
    headers["Retry-After"] = "7"
    gone = urllib.error.HTTPError("http://x", 410, "Gone", headers, None)
    busy = urllib.error.HTTPError("http://x", 503, "Busy", headers, None)
    assert isinstance(gone, OSError)
    assert classify(gone) == Permanent("http_410")
    assert classify(busy) == Transient("http_503", timedelta(seconds=7))


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("120", timedelta(seconds=120)),
        ("Mon, 30 Nov 2026 07:01:30 GMT", timedelta(seconds=90)),
        ("Mon, 30 Nov 2026 06:00:00 GMT", None),
        ("0", timedelta(0)),
        ("-5", None),
        ("1e9", None),
        ("9" * 400, None),
        ("soon", None),
        ("", None),
        ("Mon, 99 Nov 2026", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_as_a_date(value: str, wait: timedelta | None) -> None:
    assert classify(response(429, Retry_After=value), now=NOW) == Transient("http_429", wait)


@pytest.mark.parametrize("status", ["503", 200, None, 1000])
def test_what_is_no_http_error_status_says_nothing(status: Any) -> None:
    assert classify(ClientError(status=status)) == Transient("client_error")


def test_properties_that_raise_do_no_harm() -> None:
    class Nasty(Exception):
        @property
        def response(self) -> Any:
            raise RuntimeError("No response yet.")

        status = response

    assert classify(Nasty()) == Transient("nasty")


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (pg.SerializationFailure(), Transient("serialization")),
        (pg.DeadlockDetected(), Transient("serialization")),
        (pg.LockNotAvailable(), Transient("database_lock")),
        (pg.AdminShutdown(), Transient("database_shutdown")),
        (pg.TooManyConnections(), Transient("database_resources")),
        (pg.QueryCanceled(), Transient("statement_timeout")),
        (pg.UniqueViolation(), Permanent("constraint_violation")),
        (pg.NumericValueOutOfRange(), Permanent("invalid_data")),
        (pg.UndefinedTable(), Permanent("sql_error")),
        (pg.RaiseException(), Permanent("sqlstate_P0001")),
        (psycopg.OperationalError("connection lost"), Transient("database_connection")),
        (psycopg.ProgrammingError("placeholders"), Permanent("sql_error")),
    ],
)
def test_database_errors_by_sqlstate_also_behind_sqlalchemy(error: Exception, verdict: Any) -> None:
    assert classify(error) == verdict
    assert classify(sqlalchemy.exc.DBAPIError("select", {}, error)) == verdict


def test_the_handler_says_it_itself() -> None:
    assert classify(Retry()) == Transient("retry_requested")
    assert classify(Retry("not_yet", after="2m")) == Transient("not_yet", timedelta(minutes=2))
    assert classify(Discard("gone")) == Discarded("gone")
    assert classify(Reject("no_such_person")) == Permanent("no_such_person")


def test_the_handlers_rules_go_before_all_others() -> None:
    rules = Rules(transient=(ValueError, ClientError), permanent=(TimeoutError, UnicodeError))
    assert classify(ValueError(), rules) == Transient("value_error")
    assert classify(UnicodeError(), rules) == Permanent("unicode_error")
    assert classify(TimeoutError(), rules) == Permanent("timeout_error")
    assert classify(response(404, Retry_After="9"), rules) == Transient("client_error", timedelta(seconds=9))
    assert classify(Discard("gone"), Rules(permanent=(Exception,))) == Discarded("gone")


def raised_from(cause: BaseException) -> Exception:
    error = ClientError()
    error.__cause__ = cause
    return error


def test_a_function_of_the_handler_is_asked_before_its_classes() -> None:
    def judge(error: BaseException) -> Retry | Discard | Reject | None:
        match str(error):
            case "busy":
                return Retry("busy", after="7s")
            case "gone":
                return Discard("gone")
            case "bad":
                return Reject("bad")
        return None

    rules = Rules(permanent=(ValueError,), classify=judge)
    assert classify(ValueError("busy"), rules) == Transient("busy", timedelta(seconds=7))
    assert classify(ValueError("gone"), rules) == Discarded("gone")
    assert classify(OSError("bad"), rules) == Permanent("bad")
    assert classify(ValueError("other"), rules) == Permanent("value_error")
    assert classify(Retry("mine"), rules) == Transient("mine")


@pytest.mark.parametrize("judge", [lambda error: 1 / 0, lambda error: "transient"])
def test_a_function_that_fails_gives_nothing_up(judge: Any) -> None:
    assert classify(ValueError(), Rules(classify=judge)) == Transient("classify_failed")


def test_an_unknown_exception_is_judged_by_its_cause() -> None:
    assert classify(raised_from(KeyError())) == Permanent("key_error")
    assert classify(raised_from(raised_from(response(503, Retry_After="3")))) == Transient(
        "http_503", timedelta(seconds=3)
    )


def test_a_circle_of_causes_ends() -> None:
    error = ClientError()
    error.__cause__ = raised_from(error)
    assert classify(error) == Transient("client_error")


def test_of_a_group_the_permanent_one_counts_else_the_longest_wait() -> None:
    busy, busier = response(503, Retry_After="3"), response(429, Retry_After="30")
    assert classify(ExceptionGroup("", [busy, busier])) == Transient("http_429", timedelta(seconds=30))
    assert classify(ExceptionGroup("", [busy, ExceptionGroup("", [KeyError()])])) == Permanent("key_error")
    assert classify(ExceptionGroup("", [Discard("gone")])) == Discarded("gone")
