"""Processes, temporary files and lazy imports."""
