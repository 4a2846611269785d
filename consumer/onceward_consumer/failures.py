"""What an exception from a handler means: worth another attempt, final, or no failure at all. Pure.

An exception that no rule knows is transient: its attempts are bounded, and a wrong guess costs some retries, while the
opposite guess would give up on commands that a minute later would have gone through. Errors in the program itself
(a wrong type, a missing key, a failed assertion) are permanent, since repeating them changes nothing.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeAlias

from onceward_consumer.durations import Duration, duration
from onceward_consumer.outcomes import Discarded
from onceward_consumer.redaction import clean
from onceward_schemas.errors import (
    BrokerError,
    DatabaseError,
    OncewardError,
    RegistryUnavailableError,
    SchemaMissingError,
)

_LONGEST_REASON: Final = 200


class Retry(Exception):
    """Raised by a handler: try again later, `after` at the earliest where it is given."""

    def __init__(self, reason: str | None = None, *, after: Duration | None = None) -> None:
        self.reason = None if reason is None else clean(str(reason), _LONGEST_REASON)
        self.after = None if after is None else duration(after, "after")
        super().__init__(self.reason or "The handler asked for another attempt.")


class Discard(Exception):
    """Raised by a handler: there is nothing to do any more; the command ends without effect and without a dead letter."""

    def __init__(self, reason: str) -> None:
        self.reason = clean(str(reason), _LONGEST_REASON) or "discarded"
        super().__init__(self.reason)


class Reject(Exception):
    """Raised by a handler: no attempt will ever succeed; the command becomes a dead letter at once."""

    def __init__(self, reason: str) -> None:
        self.reason = clean(str(reason), _LONGEST_REASON) or "rejected"
        super().__init__(self.reason)


class OverrunError(TimeoutError):
    """The engine ended a call that took too long; `reason` says which limit it was."""

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Transient:
    """Worth another attempt, within the policy."""

    reason: str
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Permanent:
    """Final at once."""

    reason: str
    decided: bool = field(default=False, compare=False, repr=False)
    """The service's code said so itself."""


Verdict: TypeAlias = Transient | Permanent | Discarded
Kinds: TypeAlias = tuple[type[BaseException], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A handler's own opinion on exception classes; it goes before everything but Retry, Discard and Reject."""

    transient: Kinds = ()
    permanent: Kinds = ()
    classify: Callable[[BaseException], Retry | Discard | Reject | None] | None = None
    """Asked first; None leaves the exception to the other rules."""


NO_RULES: Final = Rules()

_REFUSED_BY_PROGRAM: Final[Kinds] = (
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    NameError,
    AssertionError,
    NotImplementedError,
    ImportError,
    SyntaxError,
    RecursionError,
    OncewardError,
)
_ENVIRONMENT: Final[Kinds] = (RegistryUnavailableError, SchemaMissingError, DatabaseError, BrokerError)
"""Onceward's own errors that somebody can mend while the command waits; its others say that the program is wrong."""
_RETRIED_STATUS: Final = frozenset({408, 425, 429})
_RETRIED_SQLSTATE: Final = ("08", "25P03", "25P04", "28", "40", "53", "55006", "55P03", "57", "58", "XX")
_SQLSTATE_REASONS: Final = {
    "08": "database_connection",
    "22": "invalid_data",
    "23": "constraint_violation",
    "28": "database_login",
    "40": "serialization",
    "42": "sql_error",
    "53": "database_resources",
    "55": "database_lock",
    "57": "database_shutdown",
}
_DATABASE_CLASSES: Final[Mapping[str, Verdict]] = {
    "OperationalError": Transient("database_connection"),
    "InterfaceError": Transient("database_connection"),
    "ProgrammingError": Permanent("sql_error"),
    "DataError": Permanent("invalid_data"),
    "IntegrityError": Permanent("constraint_violation"),
    "NotSupportedError": Permanent("sql_error"),
}
_DATABASE_MODULES: Final = ("psycopg", "psycopg2", "sqlalchemy", "asyncpg")
_DEPTH: Final = 8


def classify(error: BaseException, rules: Rules = NO_RULES, *, now: datetime | None = None) -> Verdict:
    """Say what `error` means; `now` (by default this moment) is what a Retry-After date is compared with.

    >>> classify(TimeoutError()), classify(KeyError("id"))
    (Transient(reason='timeout', retry_after=None), Permanent(reason='key_error'))
    >>> classify(ValueError("row locked"), Rules(transient=(ValueError,)))
    Transient(reason='value_error', retry_after=None)
    """
    verdict = _judge(error, rules, now or datetime.now(UTC), _DEPTH)
    return verdict or Transient(_reason(error))


def _judge(error: BaseException, rules: Rules, now: datetime, depth: int) -> Verdict | None:
    """The verdict of the first rule that knows the exception, else of its explicit cause, else None."""
    match error:
        case Retry():
            return Transient(error.reason or "retry_requested", error.after)
        case Discard():
            return Discarded(error.reason)
        case Reject():
            return Permanent(error.reason, decided=True)
        case _ if rules.classify is not None and (verdict := _asked(error, rules.classify)) is not None:
            return verdict
        case _ if isinstance(error, rules.permanent):
            return Permanent(_reason(error))
        case _ if isinstance(error, rules.transient):
            return Transient(_reason(error), _retry_after(error, now))
        case BaseExceptionGroup():
            return _of_group(error, rules, now, depth)
    verdict = _of_status(error, now) or _of_database(error) or _of_class(error)
    if verdict is None and error.__cause__ is not None and depth:
        return _judge(error.__cause__, rules, now, depth - 1)
    return verdict


def _asked(error: BaseException, classify: Callable[[BaseException], Any]) -> Verdict | None:
    """What the handler's own function says; one that raises, or says something else, is an error that a deployment mends."""
    try:
        said = classify(error)
    except Exception:  # the service's code runs here
        return Transient("classify_failed")
    match said:
        case None:
            return None
        case Retry():
            return Transient(said.reason or _reason(error), said.after)
        case Discard():
            return Discarded(said.reason)
        case Reject():
            return Permanent(said.reason, decided=True)
    return Transient("classify_failed")


def _of_group(group: BaseExceptionGroup[Any], rules: Rules, now: datetime, depth: int) -> Verdict:
    """Permanent if a member is, else transient if one is, with the longest wait asked for."""
    verdicts = [
        (_judge(e, rules, now, depth - 1) if depth else None) or Transient(_reason(e)) for e in group.exceptions
    ]
    for verdict in verdicts:
        if isinstance(verdict, Permanent):
            return verdict
    transient = [verdict for verdict in verdicts if isinstance(verdict, Transient)]
    return max(transient, key=lambda verdict: verdict.retry_after or timedelta(0)) if transient else verdicts[0]


def _of_class(error: BaseException) -> Verdict | None:
    match error:
        case OverrunError():
            return Transient(error.reason)
        case TimeoutError():
            return Transient("timeout")
        case ConnectionError():
            return Transient("connection")
        case ssl.SSLError():
            return Transient("tls")
        case _ if isinstance(error, _ENVIRONMENT):
            return Transient(_reason(error))
        case _ if isinstance(error, _REFUSED_BY_PROGRAM):
            return Permanent(_reason(error))
        case FileNotFoundError() | IsADirectoryError() | NotADirectoryError() | PermissionError() | FileExistsError():
            return Permanent(_reason(error))
        case OSError():
            return Transient("connection" if _reason(error) == "os_error" else _reason(error))
    return None


def _of_status(error: BaseException, now: datetime) -> Verdict | None:
    """HTTP clients: requests and httpx (`response.status_code`), aiohttp and urllib (`status`), others (`status_code`)."""
    response = _get(error, "response")
    found = (_get(error, "status"), _get(error, "status_code"), _get(response, "status_code"), _get(response, "status"))
    status = next((s for s in found if isinstance(s, int) and 400 <= s <= 599), None)
    if status is None:
        return None
    if status >= 500 or status in _RETRIED_STATUS:
        return Transient(f"http_{int(status)}", _retry_after(error, now))
    return Permanent(f"http_{int(status)}")


def _of_database(error: BaseException) -> Verdict | None:
    """PostgreSQL drivers by SQLSTATE, or by the class where the server said nothing; SQLAlchemy's wrappers by `orig`."""
    origin = _get(error, "orig")
    if isinstance(origin, BaseException):
        error = origin
    state = _get(error, "sqlstate") or _get(error, "pgcode")
    if isinstance(state, str) and len(state) == 5:
        reason = "statement_timeout" if state == "57014" else _SQLSTATE_REASONS.get(state[:2], f"sqlstate_{state}")
        return Transient(reason) if state.startswith(_RETRIED_SQLSTATE) else Permanent(reason)
    for kind in type(error).__mro__:
        if kind.__name__ in _DATABASE_CLASSES and kind.__module__.split(".")[0] in _DATABASE_MODULES:
            return _DATABASE_CLASSES[kind.__name__]
    return None


def _retry_after(error: BaseException, now: datetime) -> timedelta | None:
    """The Retry-After header as seconds or as an HTTP date (RFC 9110, section 10.2.3); None where absent or unreadable."""
    headers = _get(_get(error, "response"), "headers") or _get(error, "headers")
    get: Callable[[str], Any] | None = _get(headers, "get")
    if not callable(get):
        return None
    value = get("Retry-After") or get("retry-after")
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value or "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return timedelta(seconds=int(text))
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    wait = (at if at.tzinfo else at.replace(tzinfo=UTC)) - now
    return wait if wait > timedelta(0) else None


def _reason(error: BaseException) -> str:
    """The class name in snake case, as a reason code.

    >>> _reason(KeyError()), _reason(OSError())
    ('key_error', 'os_error')
    """
    if isinstance(error, OverrunError):
        return error.reason
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", type(error).__name__).lower()[:60]


def _get(value: Any, name: str) -> Any:
    """An attribute of somebody else's object, whose properties may raise."""
    try:
        return getattr(value, name, None)
    except Exception:  # foreign code runs here
        return None
