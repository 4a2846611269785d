"""Command -> outbox row, within the caller's own transaction."""
