"""Which server is meant, and what proves to it who calls."""
