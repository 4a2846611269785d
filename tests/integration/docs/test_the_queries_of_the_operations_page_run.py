"""An operator can paste the queries of docs/operations.md."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
BLOCK = re.compile(r"^```sql[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_every_query_runs_on_the_tables_as_they_are(database: str) -> None:
    statements = [part for block in BLOCK.findall(PAGE.read_text()) for part in block.split(";") if part.strip()]
    assert len(statements) > 4
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in statements:
            assert connection.execute(statement).description
