"""The schema registry as Onceward uses it: what a registry must do, and the client for Confluent-compatible ones.

A command's subject is the full name of its record. What is known stays known while the registry is away; a hung
registry costs a caller its time-out and no more.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import SchemaRegistryError

from onceward_schemas.compatibility import same_contract
from onceward_schemas.errors import (
    RegistryUnavailableError,
    SchemaError,
    SchemaIncompatibleError,
    SchemaMissingError,
    SettingsError,
)

T = TypeVar("T")

LEVEL = "BACKWARD_TRANSITIVE"
"""What `register` has the registry enforce for a subject, unless it is stricter already."""
_STRICT = frozenset({LEVEL, "FULL_TRANSITIVE"})
_MISSING = frozenset({40401, 40402, 40403})
_FORGET_SECONDS = 10.0
"""How long an id that the registry does not know is answered from memory, so that garbage causes no flood."""
_FORGET_COUNT = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredVersion:
    version: int
    id: int
    avro: Any
    """The schema as parsed JSON."""


class Registry(Protocol):
    """What the codec and registration need. Every implementation passes tests/conformance/test_registries.py."""

    def schema(self, schema_id: int) -> Any:
        """The schema of an id, as parsed JSON. Raises: SchemaMissingError, RegistryUnavailableError."""

    def schema_id(self, subject: str, avro: Any) -> int:
        """The id under which the schema is registered; a difference in documentation only does not matter.

        Raises: SchemaMissingError, RegistryUnavailableError.
        """

    def versions(self, subject: str) -> tuple[RegisteredVersion, ...]:
        """All versions, oldest first; empty for a subject that is not there. Raises: RegistryUnavailableError."""

    def register(self, subject: str, avro: Any) -> int:
        """Register the schema if it is new, and return its id.

        Raises: SchemaIncompatibleError, SchemaError for what the registry refuses, RegistryUnavailableError.
        """


class RegistryClient:
    """A registry over HTTP: Confluent's, Apicurio's (at /apis/ccompat/v7), Karapace or Redpanda's."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        timeout_seconds: float = 5.0,
        ca_location: str | None = None,
        certificate_location: str | None = None,
        key_location: str | None = None,
        away_remedy: str = "Check ONCEWARD_REGISTRY_URL, and that the registry runs.",
    ) -> None:
        """Connect to nothing yet. `timeout_seconds` bounds each call as a whole, retries included.

        `away_remedy` is what to do when nothing answers.
        """
        url, userinfo = _without_userinfo(url)
        if (user is None and password is not None) or (user is not None and userinfo):
            raise SettingsError(
                "The registry has a password without a user, or a user in its address and another beside it.",
                remedy="Set ONCEWARD_REGISTRY_USER and ONCEWARD_REGISTRY_PASSWORD, and leave them out of ONCEWARD_REGISTRY_URL.",
            )
        options: dict[str, Any] = {
            "url": url,
            "timeout": timeout_seconds,
            "max.retries": 1,
            "retries.wait.ms": 50,
            "ssl.ca.location": ca_location,
            "ssl.certificate.location": certificate_location,
            "ssl.key.location": key_location,
            "basic.auth.user.info": userinfo if user is None else f"{user}:{password or ''}",
        }
        try:
            self._client = SchemaRegistryClient({key: value for key, value in options.items() if value is not None})
        except (ValueError, TypeError, OSError) as error:
            raise SettingsError(
                f"The registry's settings are not usable ({type(error).__name__}).",
                remedy="Check ONCEWARD_REGISTRY_URL (http://host:port/path), user, password and the certificate files.",
            ) from error
        self._place = url
        self._away_remedy = away_remedy
        self._timeout_seconds = timeout_seconds
        self._flights: dict[tuple[object, ...], _Flight] = {}
        self._lock = threading.Lock()
        self._breaker = Breaker(timeout_seconds=timeout_seconds)
        self._schemas: dict[int, Any] = {}
        self._ids: dict[tuple[str, str], int] = {}
        self._unknown: dict[int, float] = {}

    def schema(self, schema_id: int) -> Any:
        found = self._schemas.get(schema_id)
        if found is not None:
            return found
        if self._unknown.get(schema_id, 0.0) > time.monotonic():
            raise _missing(f"schema id {schema_id}")
        try:
            text = self._fetch(("schema", schema_id), lambda: self._client.get_schema(schema_id))
        except SchemaMissingError:
            with self._lock:
                if len(self._unknown) >= _FORGET_COUNT:
                    self._unknown.clear()
                self._unknown[schema_id] = time.monotonic() + _FORGET_SECONDS
            raise _missing(f"schema id {schema_id}") from None
        self._schemas[schema_id] = found = _parsed(text)
        return found

    def schema_id(self, subject: str, avro: Any) -> int:
        text = json.dumps(avro, separators=(",", ":"))
        found = self._ids.get((subject, text))
        if found is None:
            found = self._ids[subject, text] = self._looked_up(subject, avro, text)
        return found

    def _looked_up(self, subject: str, avro: Any, text: str) -> int:
        try:
            found = self._fetch(
                ("id", subject, text), lambda: self._client.lookup_schema(subject, Schema(text, "AVRO"))
            )
            return _known(found.schema_id)
        except SchemaMissingError:
            for version in reversed(self.versions(subject)):
                if same_contract(version.avro, avro):
                    return version.id
            raise _missing(f"this schema of {subject}") from None

    def versions(self, subject: str) -> tuple[RegisteredVersion, ...]:
        try:
            numbers = self._fetch(("versions", subject), lambda: self._client.get_versions(subject))
        except SchemaMissingError:
            return ()
        return tuple(self._version(subject, number) for number in sorted(numbers))

    def _version(self, subject: str, number: int) -> RegisteredVersion:
        found = self._fetch(("version", subject, number), lambda: self._client.get_version(subject, number))
        schema_id = _known(found.schema_id)
        avro = self._schemas.setdefault(schema_id, _parsed(found.schema))
        return RegisteredVersion(version=number, id=schema_id, avro=avro)

    def register(self, subject: str, avro: Any) -> int:
        text = json.dumps(avro, separators=(",", ":"))
        self._require_level(subject)
        found = self._fetch(
            ("register", subject, text), lambda: self._client.register_schema(subject, Schema(text, "AVRO"))
        )
        self._ids[subject, text] = int(found)
        return int(found)

    def _require_level(self, subject: str) -> None:
        try:
            level = self._fetch(("level", subject), lambda: self._client.get_compatibility(subject))
        except SchemaMissingError:
            level = None
        if level not in _STRICT:
            self._fetch(("set level", subject), lambda: self._client.set_compatibility(subject, LEVEL))

    def _fetch(self, key: tuple[object, ...], request: Callable[[], T]) -> T:
        """Make the request, or wait for the one that another thread makes for the same key."""
        with self._lock:
            flight = self._flights.get(key)
            if flight is None:
                if not self._breaker.allows():
                    raise self._unavailable("did not answer a moment ago")
                flight = self._flights[key] = _Flight(lambda: self._landed(key, request))
        try:
            found: T = flight.result(self._timeout_seconds)
            return found
        except TimeoutError:
            with self._lock:
                if self._flights.get(key) is flight:
                    del self._flights[key]
                    self._breaker.failed()
            raise self._unavailable(f"did not answer within {self._timeout_seconds:g} s") from None

    def _landed(self, key: tuple[object, ...], request: Callable[[], T]) -> T:
        mine = threading.current_thread()
        failed = False
        try:
            return request()
        except SchemaRegistryError as error:
            failed = error.http_status_code >= 500 or error.http_status_code == 429
            raise self._translated(error) from None
        except Exception as error:
            failed = True
            raise self._unavailable(f"cannot be reached ({type(error).__name__})") from None
        finally:
            with self._lock:
                flight = self._flights.get(key)
                if flight is not None and flight.thread is mine:
                    del self._flights[key]
                    self._breaker.failed() if failed else self._breaker.succeeded()

    def _translated(self, error: SchemaRegistryError) -> Exception:
        status, code, message = error.http_status_code, error.error_code, str(error.error_message)[:500]
        if code in _MISSING:
            return _missing("what was asked for")
        if status == 409:
            return SchemaIncompatibleError(
                f"The registry refuses the schema: {message}.", remedy="Make the change compatible with every version."
            )
        if status == 422:
            return SchemaError(f"The registry cannot use the schema: {message}.", remedy="Correct the .avsc file.")
        if status in (401, 403):
            return self._unavailable(
                f"refuses access (HTTP {status})", "Check ONCEWARD_REGISTRY_USER and ONCEWARD_REGISTRY_PASSWORD."
            )
        if status == 404:
            return self._unavailable(
                "has no schema registry at this path",
                "Check ONCEWARD_REGISTRY_URL; Apicurio's ends in /apis/ccompat/v7.",
            )
        return self._unavailable(f"answered HTTP {status}")

    def _unavailable(self, what: str, remedy: str | None = None) -> RegistryUnavailableError:
        message = f"The schema registry at {self._place} {what}."
        return RegistryUnavailableError(message, remedy=remedy or self._away_remedy)


class _Flight:
    """One request in a thread of its own, which many may wait for, none longer than it wants."""

    def __init__(self, request: Callable[[], Any]) -> None:
        self._request = request
        self._done = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="onceward-registry", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._value = self._request()
        except BaseException as error:
            self._error = error
        self._done.set()

    def result(self, timeout_seconds: float) -> Any:
        if not self._done.wait(timeout_seconds):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._value


class Breaker:
    """After a failure refuses calls for a while that doubles, with jitter; then lets one through at a time.

    >>> breaker = Breaker(timeout_seconds=5, clock=lambda: 100.0)
    >>> breaker.failed(); breaker.allows()
    False
    """

    def __init__(
        self,
        *,
        timeout_seconds: float,
        first_seconds: float = 0.2,
        longest_seconds: float = 15.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._clock = clock
        self._failures = 0
        self._closed_until = 0.0

    def allows(self) -> bool:
        """Whether a call may be made now; after failures, True makes the caller the probe."""
        if not self._failures:
            return True
        now = self._clock()
        if now < self._closed_until:
            return False
        self._closed_until = now + self._timeout_seconds
        return True

    def failed(self) -> None:
        self._failures += 1
        ceiling = min(self._longest_seconds, self._first_seconds * 2 ** min(self._failures - 1, 16))
        self._closed_until = self._clock() + ceiling * random.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        self._failures = 0


def _without_userinfo(url: str) -> tuple[str, str | None]:
    """The address without `user:password@`, so that no log line shows it, and those.

    >>> _without_userinfo("http://ada:s%40x@host:8081/path")
    ('http://host:8081/path', 'ada:s@x')
    """
    found = None
    places = []
    for place in url.split(","):
        scheme, mark, rest = place.strip().partition("://")
        authority, slash, path = rest.partition("/")
        userinfo, _, host = authority.rpartition("@")
        found = found or (unquote(userinfo) if ":" in userinfo else f"{unquote(userinfo)}:" if userinfo else None)
        places.append(f"{scheme}{mark}{host}{slash}{path}")
    return ",".join(places), found


def _parsed(schema: Any) -> Any:
    """A registry's answer as JSON; references to other subjects are not used by commands."""
    text = getattr(schema, "schema_str", None)
    if getattr(schema, "references", None) or getattr(schema, "schema_type", "AVRO") not in (None, "AVRO") or not text:
        raise SchemaError(
            "The registered schema is not Avro in one piece.", remedy="Register commands through onceward schemas."
        )
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError("The registered schema is not JSON.", remedy="Register it again.") from error


def _known(schema_id: int | None) -> int:
    if schema_id is None:
        raise SchemaError(
            "The registry answered without a schema id.", remedy="Check that ONCEWARD_REGISTRY_URL is a registry."
        )
    return schema_id


def _missing(what: str) -> SchemaMissingError:
    return SchemaMissingError(
        f"The registry does not know {what}.",
        remedy="Run `onceward schemas register FOLDER`, against the same registry.",
    )
