"""The entry of the command line: finds the verb, and turns what goes wrong into a message, a remedy and an exit code.

Exit codes: 0 done, 1 an error that is said on stderr, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceward_schemas.errors import OncewardError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one verb and exit."""
    try:
        command = root()
    except ModuleNotFoundError as error:  # a publishing-only install
        print(f"Error: `onceward` needs the package {error.name}, which is not installed.", file=sys.stderr)
        print("Run: pip install 'onceward[server]'", file=sys.stderr)
        sys.exit(1)
    try:
        command.main(args=None if arguments is None else list(arguments), prog_name="onceward")
    except Exception as error:
        sys.exit(_report(error))


def root() -> Any:
    """Return the root command."""
    import typer

    from onceward_cli.verbs import Verbs

    app = typer.Typer(
        cls=Verbs,
        help="Commands on Kafka and PostgreSQL: nothing lost, no effect twice, no key out of order.",
        epilog="Settings come from ONCEWARD_* variables; docs/settings.md lists them.",
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["--help", "-h"]},
    )

    def print_version(wanted: bool) -> None:
        if wanted:
            print(f"onceward {importlib.metadata.version('onceward')}")
            raise typer.Exit

    @app.callback()
    def options(
        version: bool = typer.Option(
            False, "--version", help="Print the version and exit.", callback=print_version, is_eager=True
        ),
    ) -> None:
        """What stands before the verb."""

    options.__doc__ = None  # the help above is the application's
    return typer.main.get_command(app)


def _report(error: Exception) -> int:
    from onceward_cli.output import say, say_error

    if (known := _known(error)) is not None:
        say_error(known)
        return 1
    from rich.console import Console
    from rich.traceback import Traceback

    trace = Traceback.from_exception(type(error), error, error.__traceback__, show_locals=False)
    Console(stderr=True).print(trace)
    say("This is a fault in Onceward. Please report it to the project's issue tracker, with the lines above.")
    return 1


def _known(error: Exception) -> OncewardError | None:
    """The error as one of ours, if it is one or says something about a service that one of ours can say better."""
    import psycopg
    from confluent_kafka import KafkaException

    from onceward_cli.verbs import EXTRAS, missing
    from onceward_runtime import kafka, postgres
    from onceward_schemas.errors import OncewardError

    match error:
        case OncewardError():
            return error
        case ModuleNotFoundError() if (error.name or "").partition(".")[0] in EXTRAS:
            return missing(error, "onceward")
        case psycopg.Error():
            return postgres.database_error(error)
        case KafkaException():
            return kafka.broker_error(error)
    return None


if __name__ == "__main__":
    main()
