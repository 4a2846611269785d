"""What every process shares: settings, lifecycle, PostgreSQL and Kafka access, migrations, events and metrics."""
