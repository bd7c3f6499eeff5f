"""Rows and results in Arrow."""
