"""The HTTP rooms: what people, the CLI and workers in other languages ask."""
