"""Who asked: actors of events and of administration."""
