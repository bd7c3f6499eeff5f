"""The `spark` tool."""
