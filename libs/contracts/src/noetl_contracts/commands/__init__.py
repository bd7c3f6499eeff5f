"""Commands, their waits, pools and metrics."""
