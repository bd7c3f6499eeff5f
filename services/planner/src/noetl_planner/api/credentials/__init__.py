"""Routes of credentials."""
