"""Progress, logs and diagnostics on a terminal."""
