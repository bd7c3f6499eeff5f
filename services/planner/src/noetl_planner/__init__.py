"""The sole routing authority; the HTTP API."""
