"""Routes that start, wait for and control executions."""
