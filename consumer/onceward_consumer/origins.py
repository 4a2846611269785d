"""Where in the service's own code an exception arose: file, line and function; never a value, never the source's text."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final

from onceward_consumer.redaction import clean

_OURS: Final = frozenset(
    f"onceward{part}" for part in ("", "_consumer", "_producer", "_runtime", "_scheduler", "_schemas", "_testing")
)
_STANDARD: Final = tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_LONGEST: Final = 120
_DEPTH: Final = 8


def origin(error: BaseException, handler: Callable[..., Any] | None = None) -> str | None:
    """The innermost place outside Onceward, the standard library and installed packages, as `service.py:12 in charge`.

    The package that `handler` belongs to counts as the service's own where that is installed too. None where the
    exception did not come through such code.
    """
    home = (getattr(handler, "__module__", None) or "").partition(".")[0]
    return _origin(error, home, _DEPTH)


def place(frame: FrameType | None, handler: Callable[..., Any] | None = None) -> str | None:
    """The same for what a thread does now, by its innermost frame."""
    home = (getattr(handler, "__module__", None) or "").partition(".")[0]
    while frame is not None and not _is_own(frame, home):
        frame = frame.f_back
    return None if frame is None else _words(frame, frame.f_lineno)


def _origin(error: BaseException, home: str, depth: int) -> str | None:
    if isinstance(error, BaseExceptionGroup) and depth:
        for member in error.exceptions[:_DEPTH]:
            if (found := _origin(member, home, depth - 1)) is not None:
                return found
    if (found := _innermost(error.__traceback__, home)) is not None:
        return found
    return _origin(error.__cause__, home, depth - 1) if error.__cause__ is not None and depth else None


def _innermost(traceback: TracebackType | None, home: str) -> str | None:
    found = None
    while traceback is not None:
        if _is_own(traceback.tb_frame, home):
            found = traceback
        traceback = traceback.tb_next
    if found is None:
        return None
    return _words(found.tb_frame, found.tb_lineno)


def _words(frame: FrameType, line: int) -> str:
    code = frame.f_code
    return clean(f"{Path(code.co_filename).name}:{line} in {code.co_name}", _LONGEST)


def _is_own(frame: FrameType, home: str) -> bool:
    root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    kind = _kind(frame.f_code.co_filename)
    return root not in _OURS and (kind == "own" or (kind == "installed" and root == home))


@lru_cache(maxsize=4096)
def _kind(path: str) -> str:
    if path.startswith("<"):  # made at run time, frozen modules included
        return "made"
    if not _INSTALLED.isdisjoint(Path(path).parts):
        return "installed"
    return "standard" if path.startswith(_STANDARD) else "own"
