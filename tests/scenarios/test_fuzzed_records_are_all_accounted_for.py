"""Records spoiled in every part (framing, Avro bytes, headers, sizes, keys, times), and noise, come straight from Kafka.

Promised: the worker lives, its memory is bounded, the group reads on to the end, and each record is accounted for exactly once:
it is done, a dead letter, parked, discarded, skipped for a stated reason, or a duplicate of one that is.
"""

from __future__ import annotations

from pathlib import Path

from tests.chaos.fuzz_trial import run
from tests.support.services import Services

RECORDS = 5_000


def test_fuzzed_records_are_all_accounted_for(
    services: Services, database: str, topic_prefix: str, tmp_path: Path
) -> None:
    found = run(services, database, topic_prefix, tmp_path, records=RECORDS)
    assert not found.findings
    assert sum(found.outcomes.values()) == RECORDS
    assert found.outcomes["done"] > RECORDS / 3
    assert {
        "dead letter",
        "parked",
        "discarded",
        "duplicate",
        "ignored type",
        "another group's",
    } <= found.outcomes.keys()
