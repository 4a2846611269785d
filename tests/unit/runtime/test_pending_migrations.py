"""Which migrations are pending is decided without a database, and a database that does not fit is named."""

from __future__ import annotations

import pytest

from onceward_runtime.migrate import Applied, Migration, migrations, pending
from onceward_schemas.errors import DatabaseError

KNOWN = [Migration(1, "one", "select 1", "aa"), Migration(2, "two", "select 2", "bb")]


def test_the_numbers_of_the_files_have_no_gap() -> None:
    assert [m.number for m in migrations()] == list(range(1, len(migrations()) + 1))


def test_what_is_not_applied_is_pending_in_order() -> None:
    assert pending(KNOWN, []) == KNOWN
    assert pending(KNOWN, [Applied(1, "one", "aa")]) == [KNOWN[1]]
    assert pending(KNOWN, [Applied(1, "one", "aa"), Applied(2, "two", "bb")]) == []


def test_a_changed_file_is_refused() -> None:
    with pytest.raises(DatabaseError, match="0001 one was applied with another content"):
        pending(KNOWN, [Applied(1, "one", "other")])


def test_a_database_newer_than_the_code_is_named() -> None:
    with pytest.raises(DatabaseError, match=r"has migration 0003 three; .* up to 0002") as caught:
        pending(KNOWN, [Applied(3, "three", "cc")])
    assert "Upgrade Onceward" in str(caught.value)
