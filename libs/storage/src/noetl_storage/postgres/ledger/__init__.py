"""The ledger in PostgreSQL."""
