"""Routes that follow an execution while it runs."""
