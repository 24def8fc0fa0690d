"""What an event is: its columns, its identity, batches of events."""
