"""Routes of identity: who asks, roles, API keys, and the administration log."""
