"""Where stacks have their folders, and the command line that means one of them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from onceward_schemas.errors import DevstackError

DEFAULT_NAME = "default"
_PROJECT_MARKS = ("pyproject.toml", ".git", ".onceward")


def stacks_folder(home: Path | None = None, start: Path | None = None) -> Path:
    """Where stacks are kept: `home`, else .onceward/dev of the project around `start`, else a folder of the user."""
    if home is not None:
        return home.absolute()
    begin = (start or Path.cwd()).absolute()
    for folder in (begin, *begin.parents):
        if folder != Path.home() and any((folder / mark).exists() for mark in _PROJECT_MARKS):
            return folder / ".onceward" / "dev"
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "onceward" / "dev"


def stack_home(name: str, home: Path | None = None) -> Path:
    """The folder of one stack.

    Raises: DevstackError when the name cannot be a folder's.
    """
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise DevstackError(f"--name {name!r} is not a name.", remedy="Use letters, digits, - and _.")
    return stacks_folder(home) / name


def command(verb: str, folder: Path) -> str:
    """What to type here to mean the stack in this folder."""
    words = ["onceward", "dev", *verb.split()]
    if folder.name != DEFAULT_NAME:
        words += ["--name", folder.name]
    if folder.parent != stacks_folder():
        words += ["--home", str(folder.parent)]
    return shlex.join(words)
