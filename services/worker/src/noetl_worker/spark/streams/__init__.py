"""Queries that follow files as they arrive, and go on where they were after any end."""
