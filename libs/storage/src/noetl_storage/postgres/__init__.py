"""The ports of storage on PostgreSQL."""
