"""The supervisor that starts a stack and keeps it running."""
