"""Whether the schemas of a folder may follow those in the registry, and registering them: all of them or none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from onceward_schemas.avsc import CommandFile
from onceward_schemas.compatibility import Finding, changes, same_contract
from onceward_schemas.errors import SchemaError, SchemaIncompatibleError
from onceward_schemas.registry import RegisteredVersion, Registry


class State(StrEnum):
    """What registering a type does, or did."""

    NEW = "new"
    NEW_VERSION = "new version"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be said of one type."""

    file: CommandFile
    state: State
    version: int | None = None
    """The version in the registry; None before it is registered."""
    schema_id: int | None = None
    reasons: tuple[Finding, ...] = ()
    note: str | None = None


def judge(file: CommandFile, versions: Sequence[RegisteredVersion]) -> Verdict:
    """Compare a file with every registered version of its type, for no reader or writer of any may break."""
    if not versions:
        return Verdict(file=file, state=State.NEW)
    for version in reversed(versions):
        if same_contract(version.avro, file.schema.avro):
            note = None if version.avro == file.schema.avro else "the registry keeps the old documentation or aliases"
            if version is not versions[-1]:
                note = f"the registry's latest is version {versions[-1].version}"
            return Verdict(file=file, state=State.UNCHANGED, version=version.version, schema_id=version.id, note=note)
    reasons = dict.fromkeys(finding for version in reversed(versions) for finding in _against(version, file))
    return Verdict(file=file, state=State.REFUSED if reasons else State.NEW_VERSION, reasons=tuple(reasons))


def plan(files: Iterable[CommandFile], registry: Registry) -> tuple[Verdict, ...]:
    """Judge every file; changes nothing. Raises: RegistryUnavailableError."""
    return tuple(judge(file, registry.versions(file.schema.name)) for file in files)


def register(files: Iterable[CommandFile], registry: Registry) -> tuple[Verdict, ...]:
    """Register what is new. Where one is refused, none is registered, unless only the registry itself refuses it.

    Registering twice, or from two processes at once, gives the same ids.
    Raises: RegistryUnavailableError; what was registered by then stays and is found unchanged the next time.
    """
    verdicts = plan(files, registry)
    if any(verdict.state is State.REFUSED for verdict in verdicts):
        return verdicts
    return tuple(
        verdict if verdict.state is State.UNCHANGED else _registered(verdict, registry) for verdict in verdicts
    )


def require(verdicts: Iterable[Verdict]) -> None:
    """Raises: SchemaIncompatibleError with every reason, where a type is refused."""
    refused = [f"{v.file.schema.name}: {reason}" for v in verdicts for reason in v.reasons]
    if refused:
        raise SchemaIncompatibleError("Refused.\n" + "\n".join(refused))


def _registered(verdict: Verdict, registry: Registry) -> Verdict:
    schema = verdict.file.schema
    try:
        schema_id = registry.register(schema.name, schema.avro)
    except SchemaError as error:
        reason = Finding(path=schema.name, problem=error.message.removesuffix("."), remedy=error.remedy or "")
        return replace(verdict, state=State.REFUSED, reasons=(reason,))
    versions = registry.versions(schema.name)
    number = next((version.version for version in versions if version.id == schema_id), None)
    return replace(verdict, version=number, schema_id=schema_id)


def _against(version: RegisteredVersion, file: CommandFile) -> tuple[Finding, ...]:
    try:
        return changes(version.avro, file.schema.avro)
    except SchemaError as error:
        return (
            Finding(
                path=file.schema.name,
                problem=f"cannot be compared with version {version.version}: {error.message.removesuffix('.')}",
                remedy="Use another name, or delete that version from the registry.",
            ),
        )
