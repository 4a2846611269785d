"""Queries kept in .sql files, one each, in a package's `sql` folder."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def query(package: str, name: str) -> str:
    """Return the text of `<package>/sql/<name>.sql`, read once."""
    return files(package).joinpath("sql", f"{name}.sql").read_text("utf-8").strip()
