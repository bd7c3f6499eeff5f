"""Executes commands and frames."""
