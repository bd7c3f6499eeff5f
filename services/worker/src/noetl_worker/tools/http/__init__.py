"""The `http` tool."""
