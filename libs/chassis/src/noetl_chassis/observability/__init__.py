"""Metrics, spans and their names."""
