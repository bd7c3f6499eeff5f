"""The `python` tool."""
