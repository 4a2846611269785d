"""Kafka to handler: lanes, ledger, retries, dead letters and runs."""
