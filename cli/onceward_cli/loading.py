"""Finds the application that a command line names as `module:attribute`, with errors that show the user's own code."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path

from onceward_consumer.app import App
from onceward_schemas.errors import AppError, OncewardError

_FRAMES = 5


def load_app(target: str) -> App:
    """Import `module:attribute`, the working directory first on the path, and return the application there.

    Without `:attribute` it is `app`. Raises: AppError.
    """
    module_name, _, attribute = target.partition(":")
    attribute = attribute or "app"
    meant = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
    if module_name.endswith(".py") and _is_dotted(meant):
        raise AppError(f"{module_name} is a file, not a module.", remedy=f"Did you mean {meant}:{attribute}?")
    if not _is_dotted(module_name) or not attribute.isidentifier():
        raise AppError(
            f"{target!r:.80} names no application.", remedy="Write module:attribute, for instance hr.handlers:app."
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    _find(module_name, here)
    module = _import(module_name)
    found = getattr(module, attribute, None)
    if isinstance(found, App):
        return found
    apps = sorted(name for name, value in vars(module).items() if isinstance(value, App))
    nearest = difflib.get_close_matches(attribute, apps, n=1, cutoff=0.4) or apps[:1]
    hint = f"Did you mean {module_name}:{nearest[0]}?" if nearest else f'Add `{attribute} = App("...")` to it.'
    if hasattr(module, attribute):
        raise AppError(f"{module_name}:{attribute} is a {type(found).__name__}, not an App.", remedy=hint)
    raise AppError(f"The module {module_name} has no {attribute!r}.", remedy=hint)


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _find(module_name: str, here: str) -> None:
    """Tell a missing module from one whose own imports fail: look for each part before running it."""
    parts = module_name.split(".")
    for count in range(1, len(parts) + 1):
        name = ".".join(parts[:count])
        parent = sys.modules.get(".".join(parts[: count - 1])) if count > 1 else None
        if count > 1 and not hasattr(parent, "__path__"):
            raise AppError(f"{'.'.join(parts[: count - 1])} is a module, not a package.", remedy="Correct the name.")
        importlib.invalidate_caches()
        if name not in sys.modules and importlib.util.find_spec(name) is None:
            raise AppError(
                f"There is no module {name}; looked in {here} and in the installed packages.",
                remedy=_hint(parts[:count], here),
            )
        if count < len(parts):
            _import(name)


def _hint(parts: list[str], here: str) -> str:
    folder = Path(here, *parts[:-1])
    names = [path.stem for path in folder.iterdir() if path.suffix == ".py" or path.is_dir()] if folder.is_dir() else []
    nearest = difflib.get_close_matches(parts[-1], names, n=1)
    if nearest:
        return f"Did you mean {'.'.join([*parts[:-1], nearest[0]])}?"
    return "Start the command in the folder that holds it, or install its package."


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except OncewardError as error:
        raise AppError(
            f"{name} cannot be imported: {error.message}{_trace(error)}",
            remedy=error.remedy or "Correct it and try again.",
        ) from error
    except (Exception, SystemExit) as error:
        said = str(error)
        raise AppError(
            f"{name} cannot be imported: {type(error).__name__}{f': {said}' if said else ''}{_trace(error)}",
            remedy="Correct it and try again.",
        ) from error


def _trace(error: BaseException) -> str:
    """The last lines of the user's code on the way to the error: not ours, not the import machinery's."""
    ours = {str(Path(file).parent) for file in (__file__, sys.modules[App.__module__].__file__) if file}
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen")
        and str(Path(frame.filename).parent) not in ours
        and not frame.filename.endswith("importlib/__init__.py")
    ]
    lines = [f"  {frame.filename}:{frame.lineno}  {frame.line or ''}".rstrip() for frame in frames[-_FRAMES:]]
    if isinstance(error, SyntaxError) and error.filename:
        lines.append(f"  {error.filename}:{error.lineno}  {(error.text or '').strip()}".rstrip())
    return "\n" + "\n".join(lines) + "\n" if lines else "."
