"""The `transfer` tool."""
