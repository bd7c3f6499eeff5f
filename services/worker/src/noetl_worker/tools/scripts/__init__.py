"""Scripts that tasks name."""
