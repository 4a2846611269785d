"""Kafka clients: the configuration that the promises rest on, and errors that say what to do."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from onceward_runtime.settings import Settings, remedy_if_unset
from onceward_schemas.errors import BrokerError, BrokerUnavailableError

LOGGER = logging.getLogger("onceward.kafka")
"""Where librdkafka's own log goes, from warning on; a line that repeats is passed on once in ten seconds."""
LOGGER.setLevel(logging.WARNING)


class _Repeats(logging.Filter):
    """A client that cannot connect says so many times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        line = record.getMessage().partition(" (after ")[0]
        now = time.monotonic()
        if now - self._last.get(line, -_QUIET_SECONDS) < _QUIET_SECONDS:
            return False
        if len(self._last) > 1_000:
            self._last.clear()
        self._last[line] = now
        return True


_QUIET_SECONDS = 10.0
LOGGER.addFilter(_Repeats())


def client_config(settings: Settings, **more: Any) -> dict[str, Any]:
    """Return what every client has in common."""
    common: dict[str, Any] = {
        "client.id": "onceward",
        "allow.auto.create.topics": False,
        "socket.keepalive.enable": True,
        "reconnect.backoff.ms": 100,
        "reconnect.backoff.max.ms": 5_000,
        "logger": LOGGER,
    }
    return settings.kafka(**common) | more


def producer_config(settings: Settings, **more: Any) -> dict[str, Any]:
    """Return a producer's configuration: idempotent, acknowledged by all, partitioned as Java clients do."""
    return client_config(settings) | {
        "acks": "all",
        "enable.idempotence": True,
        "partitioner": "murmur2_random",
        **more,
    }


def consumer_config(
    settings: Settings,
    group: str,
    more: Mapping[str, Any] | None = None,
    *,
    protocol: Literal["classic", "consumer"] = "classic",
    session_timeout: timedelta = timedelta(seconds=45),
) -> dict[str, Any]:
    """Return a consumer's configuration: from the earliest offset, commits by hand, cooperative rebalancing.

    `more` goes before all that. With the protocol `consumer` the broker knows the session time-out and who gets what, and a client must not say so.
    """
    session = round(session_timeout.total_seconds() * 1000)
    classic = {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": session,
        "heartbeat.interval.ms": min(3000, session // 3),
    }
    return client_config(settings) | {
        "group.id": group,
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        **(classic if protocol == "classic" else {}),
        **(more or {}),
    }


def admin(settings: Settings, **more: Any) -> AdminClient:
    """Return an administrative client. It connects when first used.

    Raises: BrokerError when the settings contradict each other.
    """
    try:
        return AdminClient(client_config(settings) | more)
    except KafkaException as error:
        raise broker_error(error, "The settings for Kafka are not usable") from error


def topics(settings: Settings, *, timeout: timedelta = timedelta(seconds=10)) -> dict[str, int]:
    """Return the number of partitions of each topic, internal ones left out.

    Raises: BrokerError by cause.
    """
    heard: list[KafkaError] = []
    troubled = threading.Event()

    def on_error(error: KafkaError) -> None:
        heard.append(error)
        if error.code() in _FATAL:
            troubled.set()

    client = admin(settings, error_cb=on_error, log_level=0)  # what it logs is in the exception
    metadata = _metadata(client, timeout, troubled)
    if metadata is None:
        raise _worst(settings, heard)
    return {name: len(topic.partitions) for name, topic in metadata.topics.items() if not name.startswith("__")}


def check(settings: Settings, *, timeout: timedelta = timedelta(seconds=10)) -> None:
    """See that the cluster can be used now.

    Raises: BrokerError by cause.
    """
    topics(settings, timeout=timeout)


def wait(
    settings: Settings,
    *,
    timeout: timedelta = timedelta(seconds=60),
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Wait until the cluster can be used, or until `stopped`. Only a cluster that cannot be reached is waited for.

    Raises: BrokerError by cause.
    """
    until = time.monotonic() + timeout.total_seconds()
    while not stopped():
        left = until - time.monotonic()
        try:
            return check(settings, timeout=timedelta(seconds=min(3.0, max(0.5, left))))
        except BrokerUnavailableError:
            if time.monotonic() >= until:
                raise


def broker_error(error: KafkaException | KafkaError, doing: str = "Kafka cannot be used") -> BrokerError:
    """Return a client's error with the remedy for its cause. `doing` begins the message."""
    cause = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(cause, KafkaError):
        return BrokerError(f"{doing}: {cause}.")
    kind = BrokerUnavailableError if cause.code() in _UNREACHABLE else BrokerError
    message = f"{doing}: {cause.str().rstrip('.')}."
    unset = remedy_if_unset("kafka_bootstrap_servers", message) if kind is BrokerUnavailableError else None
    return kind(message, remedy=unset or _remedy(cause))


_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._RESOLVE,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_COORD,
    }
)
_AUTHENTICATION = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_FATAL = _AUTHENTICATION | {KafkaError._SSL}
_AUTHORISATION = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_TOPIC_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})


def _remedy(cause: KafkaError) -> str:
    code = cause.code()
    if code == KafkaError._INVALID_ARG:
        return "Correct the ONCEWARD_KAFKA_* variables; docs/settings.md lists them."
    if code in _AUTHENTICATION:
        return "Correct ONCEWARD_KAFKA_SASL_USERNAME, _PASSWORD or _MECHANISM."
    if code == KafkaError._SSL:
        return "Correct ONCEWARD_KAFKA_SSL_CA, _CERTIFICATE or _KEY, or the security protocol."
    if code in _AUTHORISATION:
        return "Grant the principal that right with an ACL."
    if code in _TOPIC_MISSING:
        return "Run `onceward topics apply`."
    if code in _UNREACHABLE:
        if "disconnected" in cause.str().lower():
            return "See whether ONCEWARD_KAFKA_SECURITY_PROTOCOL agrees with the listener."
        return "Start the broker, or correct ONCEWARD_KAFKA_BOOTSTRAP_SERVERS."
    return "See the broker's log."


def _metadata(client: AdminClient, timeout: timedelta, troubled: threading.Event) -> Any:
    """The cluster's metadata, or None. Ends early when waiting longer would change nothing."""
    until = time.monotonic() + timeout.total_seconds()
    while (left := until - time.monotonic()) > 0 and not troubled.is_set():
        try:
            return client.list_topics(timeout=min(left, 1.0))
        except KafkaException:
            client.poll(0)
    return None


def _worst(settings: Settings, heard: list[KafkaError]) -> BrokerError:
    """The error that says most: authentication and TLS before transport, what a broker said before "all are down"."""

    def weight(error: KafkaError) -> int:
        return 0 if error.code() in _FATAL else 2 if error.code() == KafkaError._ALL_BROKERS_DOWN else 1

    doing = f"Kafka at {settings.kafka_bootstrap_servers} cannot be used"
    worst = min(heard, key=weight) if heard else KafkaError(KafkaError._TIMED_OUT)
    if (not heard or weight(worst) == 2) and _accepts(settings.kafka_bootstrap_servers):
        return BrokerUnavailableError(
            f"{doing}: it takes connections, but gives no answer.",
            remedy="See whether the broker is well, and ONCEWARD_KAFKA_SECURITY_PROTOCOL agrees with the listener.",
        )
    return broker_error(worst, doing)


def _accepts(servers: str) -> bool:
    """Whether something listens at the first address."""
    host, _, port = servers.split(",")[0].strip().rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1):
            return True
    except (OSError, ValueError):
        return False
