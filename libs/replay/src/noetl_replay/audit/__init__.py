"""Checks of histories, and evidence."""
