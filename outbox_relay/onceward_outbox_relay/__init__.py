"""Outbox row -> Kafka: every committed row is produced, in order, by one active relay."""
