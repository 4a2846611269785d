"""Whole numbers as applications declare them."""

from __future__ import annotations

from typing import Any

from onceward_schemas.errors import AppError


def whole(value: Any, what: str, least: int = 1, most: int | None = None) -> int:
    """Return the number, or refuse what is none, or out of bounds; `what` is what an error calls it.

    >>> whole(3, "attempts")
    3

    Raises: AppError.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"from {least}" if most is None else f"from {least} to {most}"
        raise AppError(f"{what} is {value!r:.40}.", remedy=f"Give a whole number {bounds}.")
    return value
