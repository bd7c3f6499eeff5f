"""Commands, waits, placement and the ends of steps."""
