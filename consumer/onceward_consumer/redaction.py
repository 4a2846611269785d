"""The text of an error as it may be stored and shown: short, without secrets and without whole rows."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

LONGEST: Final = 500
_READ_AT_MOST: Final = 8_000
_MASK: Final = "***"

_SECRETS: Final = (
    (re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{1,30}://[^\s:/@]{0,200}):[^\s@/]{1,200}@"), rf"\1:{_MASK}@"),
    (re.compile(r"(?i)\b(bearer|basic|negotiate)\s+[a-z0-9._~+/=-]{6,}"), rf"\1 {_MASK}"),
    (re.compile(r"\beyJ[\w-]{4,}\.[\w-]{4,}\.?[\w-]*"), _MASK),
    (
        re.compile(
            r"""(?ix) \b( [\w-]{0,40} (?: passw(?:or)?d | passphrase | pwd | secret | token | api[_-]?key | access[_-]?key
            | private[_-]?key | credential s? | signature ) [\w-]{0,40} ["']? \s* [=:] \s* )
            (?: "[^"]*" | '[^']*' | [^\s,;&)}\]]+ )"""
        ),
        rf"\1{_MASK}",
    ),
    (re.compile(r"Failing row contains \(.*", re.DOTALL), f"Failing row contains ({_MASK})."),
    (re.compile(r"-----BEGIN [A-Z ]+-----.*", re.DOTALL), _MASK),
)


def describe(error: BaseException, longest: int = LONGEST) -> str:
    """The exception's class and message, fit for a text column: no NUL, no lone surrogate, secrets masked, cut.

    >>> describe(ConnectionError("no route to amqp://hr:hunter2@mq/"))
    'ConnectionError: no route to amqp://hr:***@mq/'
    """
    try:
        message = str(error)
    except BaseException:  # foreign code runs here
        message = "(its message cannot be read)"
    name = type(error).__qualname__
    return clean(f"{name}: {message}" if message else name, longest)


def clean(text: str, longest: int = LONGEST) -> str:
    """Mask what looks like a secret, drop what PostgreSQL refuses in text, and cut to `longest` characters.

    >>> clean("password=abc, user=x")
    'password=***, user=x'
    """
    return _cleaned(text[:_READ_AT_MOST], longest)


@lru_cache(maxsize=256)
def _cleaned(text: str, longest: int) -> str:
    """What fails, fails often and in the same words."""
    text = text.replace("\x00", "").encode("utf-8", "replace").decode()
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    text = text.strip()
    return text if len(text) <= longest else text[: longest - 1] + "…"
