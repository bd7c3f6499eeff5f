"""The `duckdb` tool."""
