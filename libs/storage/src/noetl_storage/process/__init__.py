"""Processes, temporary files, lazy imports and statements of packages."""
