"""Kafka, PostgreSQL and a schema registry without Docker, for a first try and for tests."""
