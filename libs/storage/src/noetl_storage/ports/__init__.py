"""What the services ask of storage."""
