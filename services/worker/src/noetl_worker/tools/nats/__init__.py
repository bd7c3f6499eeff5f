"""The `nats` tool."""
