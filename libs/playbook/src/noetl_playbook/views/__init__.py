"""What templates see of results and context."""
