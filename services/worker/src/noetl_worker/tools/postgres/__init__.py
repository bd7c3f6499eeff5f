"""The `postgres` tool."""
