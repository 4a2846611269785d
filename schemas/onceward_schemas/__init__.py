"""What a command is: its schema, envelope, headers, topic names and bytes. Everything else builds on this package."""
