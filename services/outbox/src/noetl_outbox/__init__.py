"""Moves committed outbox rows to JetStream."""
