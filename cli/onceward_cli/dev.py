"""`onceward dev`: Kafka, PostgreSQL and a schema registry on this machine, without Docker."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from onceward_cli.output import Output, OutputOption, as_json, say, screen
from onceward_devstack.downloads import Downloads, Update, pinned_files, read_lock
from onceward_devstack.places import DEFAULT_NAME, command, stack_home
from onceward_devstack.requirements import DATA_MIB, check_disk, check_packages, check_platform
from onceward_devstack.stack import SERVICES, environment, remove_data
from onceward_devstack.state import ServiceState, StackState, is_stack, read_state
from onceward_devstack.supervisor import Supervisor, end, start_detached, wait_while_starting
from onceward_schemas.errors import DevstackError

app = typer.Typer(
    name="dev",
    help="Run Kafka, PostgreSQL and a schema registry on this machine, without Docker.",
    no_args_is_help=True,
)

_FOLLOW_SECONDS = 0.2
_TABLE_WIDTH = 120
_LOGS = (*SERVICES, "supervisor")

Name = Annotated[str, typer.Option("--name", help="Which stack; two names run side by side.")]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home", help="Folder that holds the stacks. Defaults to .onceward/dev of the project, or the user's."
    ),
]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Defaults to the last one used, or a free one.")]


@app.command()
def up(
    name: Name = DEFAULT_NAME,
    home: Home = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay attached; Ctrl-C ends the services.")] = False,
    kafka_port: Port = None,
    postgres_port: Port = None,
    registry_port: Port = None,
    maven_repository: Annotated[
        str | None, typer.Option(help="URL of a mirror for the Java files. Defaults to Maven Central.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start the services and wait until they answer. Data of an earlier start are kept."""
    wanted = {"kafka": kafka_port, "postgres": postgres_port, "registry": registry_port}
    ports = {service: port for service, port in wanted.items() if port is not None}
    folder = stack_home(name, home)
    with _watching() as watch:
        state = wait_while_starting(folder, watch)
    if state.healthy:
        if foreground:
            raise DevstackError(f"The stack {name!r} runs already.", remedy=f"Use it, or: {command('down', folder)}")
        _refuse_other_ports(folder, state, ports)
        _show(folder, state, output)
        return
    end(folder)  # one of its servers is gone
    _prepare(folder, maven_repository)
    _ignore_in_git(folder)
    with _watching() as watch:
        if foreground:
            Supervisor(folder, name, ports, lambda state: _attached(folder, state, watch, output)).run()
            return
        state = start_detached(folder, name, ports, watch=watch)
    _show(folder, state, output)


@app.command()
def status(name: Name = DEFAULT_NAME, home: Home = None, output: OutputOption = Output.TABLE) -> None:
    """Show addresses, versions, memory and process ids. Exits with 1 unless all services run."""
    folder = stack_home(name, home)
    state = read_state(folder)
    _show(folder, state, output)
    if not state.healthy:
        raise typer.Exit(1)


@app.command()
def logs(
    service: Annotated[str | None, typer.Argument(help=f"One of {', '.join(_LOGS)}. Defaults to all.")] = None,
    name: Name = DEFAULT_NAME,
    home: Home = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new lines until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 50,
) -> None:
    """Print what the services logged."""
    if service is not None and service not in _LOGS:
        raise DevstackError(f"There is no service {service!r}.", remedy=f"Choose one of {', '.join(_LOGS)}.")
    folder = stack_home(name, home)
    if not is_stack(folder):
        raise DevstackError(f"There is no stack {name!r} in {folder.parent}.", remedy=_start_hint(folder))
    chosen = (service,) if service else _LOGS
    paths = {log: folder / f"{log}.log" if log == "supervisor" else folder / log / f"{log}.log" for log in chosen}
    offsets = {log: _print_tail(log if service is None else "", path, lines) for log, path in paths.items()}
    while follow:
        time.sleep(_FOLLOW_SECONDS)
        for log, path in paths.items():
            offsets[log] = _print_from(log if service is None else "", path, offsets[log])


@app.command()
def down(name: Name = DEFAULT_NAME, home: Home = None, output: OutputOption = Output.TABLE) -> None:
    """Stop the services; their data are kept."""
    folder = stack_home(name, home)
    ended = end(folder)
    if output is Output.JSON:
        typer.echo(as_json({"name": name, "stopped": ended}))
    else:
        place = f"The stack {name!r} in {folder}"
        say(f"{place} is stopped; its data are kept." if ended else f"{place} was not running.")


@app.command()
def reset(
    name: Name = DEFAULT_NAME,
    home: Home = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Stop the services and delete all their data."""
    folder = stack_home(name, home)
    exists = is_stack(folder)
    if exists:
        if not yes and not sys.stdin.isatty():
            raise DevstackError(f"reset deletes all data in {folder}.", remedy="Say so with --yes.")
        if not yes:
            typer.confirm(f"Delete all topics, databases and schemas in {folder}?", abort=True, err=True)
        end(folder)
        remove_data(folder)
    if output is Output.JSON:
        typer.echo(as_json({"name": name, "deleted": exists}))
    else:
        say(f"The data of {name!r} are deleted." if exists else f"There is no stack {name!r} in {folder.parent}.")


@app.command()
def env(name: Name = DEFAULT_NAME, home: Home = None, output: OutputOption = Output.TABLE) -> None:
    """Print the settings for a shell: eval "$(onceward dev env)"."""
    variables = _variables(stack_home(name, home), name)
    if output is Output.JSON:
        typer.echo(as_json(variables))
        return
    for variable, value in variables.items():
        typer.echo(f"export {variable}={shlex.quote(value)}")


@app.command(context_settings={"ignore_unknown_options": True})
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND [ARGUMENT]...", help="What to run.")],
    name: Name = DEFAULT_NAME,
    home: Home = None,
) -> None:
    """Run a command with the settings of the stack in its environment."""
    variables = _variables(stack_home(name, home), name)
    try:
        os.execvpe(command[0], command, os.environ | variables)
    except OSError as error:
        raise DevstackError(
            f"{command[0]} cannot be run: {error.strerror}.", remedy="Check its name and PATH."
        ) from error


def _prepare(folder: Path, maven_repository: str | None) -> None:
    """Check the machine and download what is missing, with progress, before anything is started."""
    check_platform()
    check_packages()
    check_disk(folder, DATA_MIB)
    downloads = Downloads(repositories={"mirror": maven_repository} if maven_repository else None)
    if downloads.complete():
        return
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[count]}"), console=Console(stderr=True)
    ) as bars:
        total = len(read_lock(pinned_files()))
        overall = bars.add_task("Downloading Kafka and the registry", total=total, count=f"0/{total} files")

        @contextmanager
        def one_file(file: str, size: int) -> Iterator[Update]:
            task = bars.add_task(f"  {file}", total=size, count=f"{size / 2**20:.1f} MiB")
            yield lambda count: bars.advance(task, count)
            bars.remove_task(task)
            done = int(bars.tasks[0].completed) + 1
            bars.update(overall, completed=done, count=f"{done}/{total} files")

        downloads.fetch(one_file)


@contextmanager
def _watching() -> Iterator[Callable[[StackState], None]]:
    """Say on the terminal what is awaited while the services start."""
    with Console(stderr=True).status("Starting the services") as spinner:

        def watch(state: StackState) -> None:
            ready = {service.name for service in state.services}
            awaited = ", ".join(service for service in SERVICES if service not in ready)
            if state.phase == "starting":
                spinner.update(f"Waiting for {awaited}" if awaited else "Starting the services")
            else:
                spinner.stop()

        yield watch


def _attached(folder: Path, state: StackState, watch: Callable[[StackState], None], output: Output) -> None:
    watch(state)
    if state.phase == "running":
        _show(folder, state, output)
        if output is Output.TABLE:
            say("Ctrl-C ends the services.")


def _ignore_in_git(folder: Path) -> None:
    """Keep a project's .onceward out of its repository."""
    dot = next((parent for parent in folder.parents if parent.name == ".onceward"), None)
    if dot is not None and not (dot / ".gitignore").exists():
        dot.mkdir(parents=True, exist_ok=True)
        (dot / ".gitignore").write_text("*\n")


def _refuse_other_ports(folder: Path, state: StackState, ports: dict[str, int]) -> None:
    for service, port in ports.items():
        if re.search(rf":{port}\b", state.address(service)) is None:
            raise DevstackError(
                f"The stack {state.name!r} runs already, with {service} at {state.address(service)}.",
                remedy=f"To change the port: {command('down', folder)}, then up again.",
            )


def _variables(folder: Path, name: str) -> dict[str, str]:
    state = read_state(folder)
    if state.phase != "running":
        raise DevstackError(f"The stack {name!r} in {folder} does not run.", remedy=_start_hint(folder))
    return environment(*(state.address(service) for service in SERVICES))


def _start_hint(folder: Path) -> str:
    return f"Start it: {command('up', folder)}"


def _show(folder: Path, state: StackState, output: Output) -> None:
    if output is Output.JSON:
        typer.echo(as_json(_as_data(folder, state)))
        return
    console = screen()
    console.width = max(console.width, _TABLE_WIDTH)  # an address is for copying: let the terminal wrap it, whole
    if not state.services:
        failed = f"could not start: {state.error}" if state.phase == "failed" else f"is {state.phase}."
        console.print(f"The stack {state.name!r} in {folder} {failed}", soft_wrap=True)
        console.print(state.remedy or _start_hint(folder), soft_wrap=True)
        return
    table = Table("service", "state", "address", "version", "memory", "pid", box=None, pad_edge=False)
    for service in state.services:
        table.add_row(
            service.name,
            _condition(service),
            service.address,
            service.version,
            "-" if service.memory_mib is None else f"{service.memory_mib} MiB",
            str(service.pid),
            style="" if service.alive else "red",
        )
    console.print(table)
    say(f'Data in {folder}. Settings for a shell: eval "$({command("env", folder)})"')


def _as_data(folder: Path, state: StackState) -> dict[str, object]:
    services = [
        {
            "name": service.name,
            "state": _condition(service),
            "address": service.address,
            "version": service.version,
            "memory_mib": service.memory_mib,
            "pid": service.pid,
            "log": service.log,
        }
        for service in state.services
    ]
    known = {key: value for key, value in asdict(state).items() if key in ("name", "phase", "pid", "error", "remedy")}
    return {**known, "home": str(folder), "services": services}


def _condition(service: ServiceState) -> str:
    return "running" if service.alive else "ended"


def _print_tail(label: str, path: Path, lines: int) -> int:
    """Print the last lines; return how far the file was read."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0
    _print_lines(label, content.decode(errors="replace").splitlines()[-lines:] if lines else [])
    return len(content)


def _print_from(label: str, path: Path, offset: int) -> int:
    """Print what was added after `offset`, whole lines only; return the new offset."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size < offset:  # a new file under the old name
                offset = 0
            file.seek(offset)
            content = file.read()
    except FileNotFoundError:
        return 0
    whole = content[: content.rfind(b"\n") + 1]
    _print_lines(label, whole.decode(errors="replace").splitlines())
    return offset + len(whole)


def _print_lines(label: str, lines: list[str]) -> None:
    for line in lines:
        typer.echo(f"{label:<10}| {line}" if label else line)
