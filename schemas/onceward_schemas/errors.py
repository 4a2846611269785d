"""Every error that Onceward raises on purpose. Each states a fact and ends with what to do next.

OncewardError
├── SettingsError               a setting is missing, unknown or malformed
├── SchemaError                 an .avsc file or a registered schema cannot be used
│   ├── SchemaIncompatibleError a change would break readers or writers
│   └── SchemaMissingError      the registry does not know a schema id or subject
├── RegistryUnavailableError    the registry did not answer in time
├── InvalidCommandError         a command's value does not fit its schema; names the field
│   └── PayloadTooLargeError    the encoded command exceeds the size cap
├── UndecodableError            bytes or headers of a record cannot be read; carries a reason code
├── TopicNameError              a lane, group or topic name that Kafka would refuse
├── TransactionError            publish was called without an open transaction, or a handler ended ours
├── DatabaseError               the database cannot be used as it is (rights, version, migrations)
├── BrokerError                 Kafka cannot be used as it is (unreachable, rights, topics)
│   └── BrokerUnavailableError  no broker answered in time
├── RunError                    a run cannot be started, found or retried as asked
├── DeadLetterError             no such dead letter, or the decision about it lacks something
├── ParkedError                 a parked command cannot be decided as asked
├── LimitError                  a limit cannot be set or found as asked
├── AppError                    the application object contradicts itself (two handlers of one type, a bad rule)
└── DevstackError               a local service could not be installed or started
"""

from __future__ import annotations

import inspect


class OncewardError(Exception):
    """Onceward could not go on."""

    def __init__(self, message: str | None = None, *, remedy: str | None = None) -> None:
        """Keep the two parts apart: `message` says what is so, `remedy` what to do about it."""
        self.message = message or inspect.cleandoc(type(self).__doc__ or "").split("\n")[0]
        self.remedy = remedy
        super().__init__(self.message if remedy is None else f"{self.message} {remedy}")


class SettingsError(OncewardError):
    """A setting is missing, unknown or malformed."""


class SchemaError(OncewardError):
    """A schema cannot be used."""


class SchemaIncompatibleError(SchemaError):
    """A schema change would break readers or writers."""


class SchemaMissingError(SchemaError):
    """The registry does not know this schema."""


class RegistryUnavailableError(OncewardError):
    """The schema registry did not answer in time."""


class InvalidCommandError(OncewardError):
    """A command's value does not fit its schema."""

    def __init__(self, message: str | None = None, *, field: str | None = None, remedy: str | None = None) -> None:
        self.field = field
        super().__init__(message, remedy=remedy)


class PayloadTooLargeError(InvalidCommandError):
    """The encoded command is larger than the size cap."""


class UndecodableError(OncewardError):
    """A record cannot be read."""

    def __init__(self, message: str | None = None, *, reason: str, remedy: str | None = None) -> None:
        self.reason = reason
        super().__init__(message, remedy=remedy)


class TopicNameError(OncewardError):
    """Kafka would refuse this topic name."""


class TransactionError(OncewardError):
    """No transaction is open."""


class DatabaseError(OncewardError):
    """The database cannot be used as it is."""


class BrokerError(OncewardError):
    """Kafka cannot be used as it is."""


class RunError(OncewardError):
    """A run cannot be started, found or retried as asked."""


class DeadLetterError(OncewardError):
    """A dead letter cannot be decided as asked."""


class ParkedError(OncewardError):
    """A parked command cannot be decided as asked."""


class LimitError(OncewardError):
    """A limit cannot be set as asked."""


class BrokerUnavailableError(BrokerError):
    """No broker answered in time."""


class AppError(OncewardError):
    """The application contradicts itself."""


class DevstackError(OncewardError):
    """A local service could not be installed or started."""
