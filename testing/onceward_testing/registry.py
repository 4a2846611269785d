"""A schema registry in memory, for tests without one. It is as strict as `onceward schemas register`."""

from __future__ import annotations

import threading
from typing import Any

from onceward_schemas.avro import parse
from onceward_schemas.command import Command
from onceward_schemas.compatibility import changes, same_contract
from onceward_schemas.errors import SchemaIncompatibleError, SchemaMissingError
from onceward_schemas.registry import RegisteredVersion


class MemoryRegistry:
    """Ids count from 1; a schema has one id across subjects. Commands given to the constructor are registered."""

    def __init__(self, *commands: type[Command]) -> None:
        self._schemas: list[Any] = []
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        for command in commands:
            self.register(command.SCHEMA.name, command.SCHEMA.avro)

    def schema(self, schema_id: int) -> Any:
        if not 1 <= schema_id <= len(self._schemas):
            raise _missing(f"schema id {schema_id}")
        return self._schemas[schema_id - 1]

    def schema_id(self, subject: str, avro: Any) -> int:
        for schema_id in reversed(self._subjects.get(subject, ())):
            if same_contract(self._schemas[schema_id - 1], avro):
                return schema_id
        raise _missing(f"this schema of {subject}")

    def versions(self, subject: str) -> tuple[RegisteredVersion, ...]:
        ids = self._subjects.get(subject, ())
        return tuple(
            RegisteredVersion(version=number, id=schema_id, avro=self._schemas[schema_id - 1])
            for number, schema_id in enumerate(ids, 1)
        )

    def register(self, subject: str, avro: Any) -> int:
        parse(avro)
        with self._lock:
            try:
                return self.schema_id(subject, avro)
            except SchemaMissingError:
                pass
            for version in self.versions(subject):
                for finding in changes(version.avro, avro):
                    raise SchemaIncompatibleError(
                        f"{subject} breaks version {version.version}: {finding.path} {finding.problem}.",
                        remedy=finding.remedy,
                    )
            schema_id = next((n for n, known in enumerate(self._schemas, 1) if same_contract(known, avro)), None)
            if schema_id is None:
                self._schemas.append(avro)
                schema_id = len(self._schemas)
            self._subjects.setdefault(subject, []).append(schema_id)
            return schema_id


def _missing(what: str) -> SchemaMissingError:
    return SchemaMissingError(
        f"The registry does not know {what}.", remedy="Register the command in the test's registry."
    )
