"""Who asks, and what they may do: principals, roles, and the check of every request."""
