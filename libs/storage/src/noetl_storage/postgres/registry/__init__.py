"""Catalog, credentials, schedules and triggers in PostgreSQL."""
