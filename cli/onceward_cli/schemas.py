"""`onceward schemas`: command classes from .avsc files, and the schemas in the registry."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from onceward_cli.output import Output, OutputOption, say, show, show_one
from onceward_runtime import settings
from onceward_runtime.registry import registry_client
from onceward_schemas import registration
from onceward_schemas.avsc import load_folder
from onceward_schemas.errors import RegistryUnavailableError, SchemaError
from onceward_schemas.generate import generated_module
from onceward_schemas.registration import State, Verdict

app = typer.Typer(help="Generate command classes; check and register schemas.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(help="The folder with the .avsc files.", metavar="FOLDER")]


@app.command()
def generate(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option("--out", help="The module to write. Defaults to commands.py beside FOLDER.")
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 where it would change.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write one Python module with a class for each command."""
    files = load_folder(folder)
    target = out or folder.resolve().parent / "commands.py"
    if target.with_suffix("").is_dir():
        raise SchemaError(
            f"{target} would stand beside a folder of its name, which type checkers take for the module.",
            remedy="Rename the folder, for instance to schemas, or name another module with --out.",
        )
    text = generated_module(files, folder=folder.resolve().name)
    before = _text(target)
    if check and before != text:
        sys.stdout.writelines(_difference(before or "", text, target) if output is Output.TABLE else [])
        show_one(_summary(target, len(files), "out of date"), output) if output is Output.JSON else None
        say(f"{target} is out of date. Run: onceward schemas generate {folder}{f' --out {out}' if out else ''}")
        raise typer.Exit(1)
    if before != text:
        try:
            target.write_text(text, encoding="utf-8")
        except OSError as error:
            raise SchemaError(
                f"{target} cannot be written ({error.strerror}).", remedy="Name another file with --out."
            ) from error
    show_one(_summary(target, len(files), "unchanged" if before == text else "written"), output)


@app.command()
def check(
    folder: Folder,
    registry: Annotated[
        bool | None,
        typer.Option("--registry/--offline", help="Insist on the registry, or do without. Defaults to trying."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check the files, and that they may follow what is registered. Changes nothing; exits with 1 if one is refused."""
    files = load_folder(folder)
    verdicts: tuple[Verdict, ...] = ()
    if registry is not False:
        try:
            verdicts = registration.plan(files, registry_client(settings.load()))
        except RegistryUnavailableError as error:
            if registry:
                raise
            say(f"{error.message} Only the files were checked.")
    if verdicts:
        _report(verdicts, output)
    else:
        show([{"type": file.schema.name, "state": "usable", "file": str(file.path)} for file in files], output)


@app.command()
def register(
    folder: Folder,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Register new types and versions. Where one is refused, nothing is registered and the exit code is 1."""
    files = load_folder(folder)
    _report((registration.plan if dry_run else registration.register)(files, registry_client(settings.load())), output)


def _report(verdicts: tuple[Verdict, ...], output: Output) -> None:
    show([_row(verdict, output) for verdict in verdicts], output)
    refused = [verdict for verdict in verdicts if verdict.state is State.REFUSED]
    for verdict in refused:
        for reason in verdict.reasons:
            say(f"{verdict.file.path}: {reason}")
    if refused:
        raise typer.Exit(1)


def _row(verdict: Verdict, output: Output) -> dict[str, Any]:
    row: dict[str, Any] = {
        "type": verdict.file.schema.name,
        "state": verdict.state,
        "version": verdict.version,
        "id": verdict.schema_id,
        "note": verdict.note,
    }
    if output is Output.JSON:
        row["file"] = str(verdict.file.path)
        row["reasons"] = [{"path": r.path, "problem": r.problem, "remedy": r.remedy} for r in verdict.reasons]
    return row


def _summary(target: Path, count: int, state: str) -> dict[str, Any]:
    return {"module": str(target), "commands": count, "state": state}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise SchemaError(f"{path} cannot be read.", remedy="Name another file with --out.") from error


def _difference(before: str, after: str, path: Path) -> list[str]:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    return list(difflib.unified_diff(old, new, str(path), f"{path} (generated)"))
