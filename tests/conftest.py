"""Fixtures for all tests; they live in tests/support."""

from tests.support import examples
from tests.support.services import database, migrated_template, own_stack, services, topic_prefix

__all__ = ["database", "migrated_template", "own_stack", "services", "topic_prefix"]

examples.choose()
