"""Facts on their way into a decision."""
