"""Routes of schedules, webhooks and messages."""
